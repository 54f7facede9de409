"""The first paper's text experiments: forced to smooth or to sharpen, language models generalise worse."""

NO_TABLES = ("figures", "variants")
