"""Dovonon et al.'s text experiments: do language models that are forced to smooth or to sharpen generalise worse?"""
