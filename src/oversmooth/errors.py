"""The one way this package refuses bad input."""


class InputError(ValueError):
    """One sentence that names the thing, its value and the remedy.

    The command line prints it and leaves with exit code 2; in Python it is an ordinary ``ValueError``.
    """
