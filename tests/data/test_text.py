"""Text as characters and as words, and the windows cut from it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from dlsys.data import CharacterText, Collection, DataArgumentError, SequenceDataset, WordText, batchify, text
from dlsys.errors import DataError, DTypeError, ShapeError
from helpers import error_of
from mirrors import listing, server, write

REAL = os.environ.get("DLSYS_DATA", "")
SAMPLE = "One line.\nTwo, été!\n\nthe end\n" * 10


def test_characters_of_a_file(folder: Path) -> None:
    file = folder / "mine.txt"
    file.write_bytes(SAMPLE.encode("utf-8"))
    data = CharacterText(file)
    sizes = f"{int(0.9 * len(SAMPLE))} / {len(SAMPLE) - int(0.9 * len(SAMPLE))} characters of 17"
    assert repr(data) == f"CharacterText({sizes}, source='{file}')" and data.train.dtype == np.int64
    assert data.decode(data.train) + data.decode(data.test) == SAMPLE
    assert data.vocabulary == "".join(sorted(set(SAMPLE)))
    assert data.decode(data.encode("Two")) == "Two" and data.decode([]) == ""
    assert [data.vocabulary[i] for i in data.encode("end")] == list("end")
    assert "the character 'a' at 2 is not in the vocabulary" in error_of(DataError, data.encode, "tha Z")
    for tokens, words in (([0.5], "not 0.5"), ([-1], "not -1"), ([99], "token 99 of 17")):
        assert words in error_of(DataArgumentError, data.decode, tokens)
    for content, words in ((SAMPLE.encode("latin-1"), "no UTF-8 text: byte 0xe9 at 15"), (b"", "holds no text")):
        file.write_bytes(content)
        assert f"mine.txt {'is ' * bool(content)}{words}" in error_of(DataError, CharacterText, file)
    assert "not a directory" in error_of(DataError, CharacterText, folder / "absent.txt")


@pytest.mark.skipif(not Path(REAL, "tinyshakespeare").is_dir(), reason="DLSYS_DATA has no tinyshakespeare")
def test_tinyshakespeare() -> None:
    data, words = CharacterText(REAL), WordText(REAL)
    assert len(data.train) == 1_003_854 and len(data.test) == 111_540 and len(data.vocabulary) == 65
    assert data.decode(data.train[:17]) == "First Citizen:\nBe"
    assert words.dictionary.idx2word[:3] == ["First", "Citizen:", "<eos>"] and len(words.dictionary) == 25_671


def test_a_text_of_a_mirror_the_cache_or_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = SAMPLE.encode()
    with server({"input.txt": body}) as (url, asked):
        sums = {"input.txt": hashlib.md5(body).hexdigest()}
        monkeypatch.setattr(text, "FILES", Collection("tinyshakespeare", sums, (url + "{}",)))
        assert text.read_text() == (SAMPLE, f"downloaded to {folder}/cache/data/tinyshakespeare")
        assert text.read_text() == (SAMPLE, f"{folder}/cache/data/tinyshakespeare")
        assert asked == ["/input.txt"] and listing(folder) == ["input.txt"]
    write(folder / "data" / "tinyshakespeare", {"input.txt": b"another text\n"})
    assert "is damaged" in error_of(DataError, CharacterText, folder / "data")
    monkeypatch.setenv("DLSYS_OFFLINE", "1")
    monkeypatch.setenv("DLSYS_CACHE", str(folder / "empty"))
    content, source = text.read_text()
    expected = "tinyshakespeare is not available (DLSYS_OFFLINE is set): using a part of Newton's Opticks.\n"
    assert capsys.readouterr().out == expected and len(WordText().train) > 7_000
    assert hashlib.md5(content.encode()).hexdigest() == "7409dabceb1e118f8affd5db2a22ce41"
    assert content.startswith("Query 1. Do not Bodies") and content.isascii() and source.startswith("Newton's Opticks")


def test_windows() -> None:
    tokens = np.arange(100, 123)
    for length, stride in ((4, None), (4, 1), (5, 3), (22, None), (1, 1)):
        data = SequenceDataset(tokens, length, stride)
        starts = range(0, 23 - length, stride or length)
        assert len(data) == len(starts)
        x, y = data.batch(np.arange(len(data)))
        assert x.dtype == y.dtype == np.int64 and x.flags.c_contiguous and y.flags.c_contiguous
        for index, start in enumerate(starts):
            assert x[index].tolist() == data[index][0].tolist() == tokens[start : start + length].tolist()
            assert y[index].tolist() == data[index][1].tolist() == tokens[start + 1 : start + length + 1].tolist()
    data = SequenceDataset(tokens, 4)
    assert data[-1][0].tolist() == [116, 117, 118, 119]
    error_of(IndexError, data.__getitem__, 5)
    assert "hold no window of 23 + 1" in error_of(ShapeError, SequenceDataset, tokens, 23)
    assert "length must be an integer >= 1, not 0" in error_of(DataArgumentError, SequenceDataset, tokens, 0)
    assert "float64" in error_of(DTypeError, SequenceDataset, tokens / 2, 4)


def test_words_of_a_file_and_of_two_files(folder: Path) -> None:
    (folder / "mine.txt").write_text("the cat sat\n\non the mat\n" * 10, encoding="utf-8")
    data = WordText(folder / "mine.txt")
    assert data.dictionary.idx2word == ["the", "cat", "sat", "<eos>", "on", "mat"]
    assert data.train[:9].tolist() == [0, 1, 2, 3, 3, 4, 0, 5, 3] and data.train.dtype == np.int64
    assert len(data.train) == 9 * 9 and len(data.test) == 9  # 27 and 3 of 30 lines
    write(folder / "ptb", {"train.txt": b" a b a \n c a\nx", "test.txt": b"b d\n"})
    data = WordText(folder / "ptb")
    assert data.dictionary.idx2word == ["a", "b", "<eos>", "c", "x", "d"]
    assert data.train.tolist() == [0, 1, 0, 2, 3, 0, 2, 4, 2] and data.test.tolist() == [1, 5, 2]
    data = WordText(folder / "ptb", max_words=1)
    assert data.dictionary.idx2word == ["a", "<unk>", "<eos>"] and data.train[:4].tolist() == [0, 1, 0, 2]
    assert data.test.tolist() == [1, 1, 2]
    assert "max_words" in error_of(DataArgumentError, WordText, folder / "ptb", max_words=0)
    os.environ["DLSYS_DATA"] = str(folder / "ptb")
    assert "input.txt" in error_of(DataError, WordText)


def test_batchify() -> None:
    data = batchify(np.arange(26), 4)
    assert data.shape == (6, 4) and data.dtype == np.int64 and data.flags.c_contiguous
    assert data[0].tolist() == [0, 6, 12, 18] and data[:, 1].tolist() == list(range(6, 12))
    assert "(3,) in 4 columns" in error_of(ShapeError, batchify, [1, 2, 3], 4)
