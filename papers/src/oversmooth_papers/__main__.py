"""`oversmooth` with the papers' commands, from two source folders alone: `python -m oversmooth_papers reproduce …`."""

from oversmooth.__main__ import main
from oversmooth.safety import extensions

if __name__ == "__main__":
    extensions.add("oversmooth.commands", "oversmooth_papers.cli")
    extensions.add("oversmooth.loaders", "oversmooth_papers.loader")
    main()
