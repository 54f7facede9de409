"""`python -m oversmooth`: the command line where no console script is installed, and under torchrun."""

from oversmooth.cli import main

main()
