"""Files that are there when they are whole."""

import pytest

from sharpmax.files import written_whole


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as fresh:
        fresh.write_text("first")
    with pytest.raises(UnicodeEncodeError), written_whole(path) as fresh:
        fresh.write_text("half of the sec\udcff")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
