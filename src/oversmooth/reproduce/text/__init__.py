"""Dovonon et al.'s text experiments: forced to smooth or to sharpen, language models generalise worse."""

NO_TABLES = ("figures", "variants")
