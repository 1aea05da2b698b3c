"""Text as characters and as words, and the windows cut from it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from dlsys.data import (
    CharacterText,
    DataArgumentError,
    DataLoader,
    SequenceDataset,
    WordText,
    batchify,
    get_batch,
    text,
)
from dlsys.errors import DataError, DTypeError, ShapeError
from helpers import error_of
from mirrors import listing, quiet, sandbox, server, write

REAL = os.environ.get("DLSYS_DATA")
SAMPLE = "One line.\nTwo, été!\n\nthe end\n" * 10


# Characters ------------------------------------------------------------------------------------------------


def test_characters_of_a_file(folder: Path):
    file = folder / "mine.txt"
    file.write_bytes(SAMPLE.encode("utf-8"))
    train, test, whole = (CharacterText(file, split) for split in ("train", "test", "all"))
    (folder / "latin1.txt").write_bytes(SAMPLE.encode("latin-1"))
    message = error_of(DataError, CharacterText, folder / "latin1.txt")
    assert "latin1.txt is no UTF-8 text: byte 0xe9 at 15" in message
    (folder / "empty.txt").write_bytes(b"")
    assert "holds no text" in error_of(DataError, CharacterText, folder / "empty.txt")
    assert "not a directory" in error_of(DataError, CharacterText, folder / "absent.txt")
    assert train.text + test.text == whole.text == SAMPLE
    assert len(train) == int(0.9 * len(SAMPLE)) and train.source == str(file)
    assert train.vocabulary == test.vocabulary == "".join(sorted(set(SAMPLE)))
    assert train.tokens.dtype == np.int64 and train.decode(train.tokens) == train.text
    assert train.decode(train.encode("Two")) == "Two" and train.decode([]) == ""
    assert [train.vocabulary[i] for i in train.encode("end")] == list("end")
    message = error_of(DataError, train.encode, "tha Z")
    assert "the character 'a' at 2 is not in the vocabulary of" in message
    assert "float" in error_of(DTypeError, train.decode, [0.5])


def test_tinyshakespeare():
    if not REAL or not (Path(REAL) / "tinyshakespeare").is_dir():
        return
    train, test = CharacterText(REAL), CharacterText(REAL, "test")
    assert len(train) == 1_003_854 and len(test) == 111_540 and len(train.vocabulary) == 65
    assert train.text.startswith("First Citizen:\nBefore we proceed")
    words = WordText(REAL)
    assert words.dictionary.idx2word[:3] == ["First", "Citizen:", "<eos>"]
    assert len(words.dictionary) == 25_671


def test_mirror_cache_and_embedded_text(folder: Path):
    body = SAMPLE.encode()
    sums = {"input.txt": hashlib.md5(body).hexdigest()}
    with server({"input.txt": body}) as (url, asked):
        files = text.Collection("tinyshakespeare", sums, (url,), suffix="")
        with mock.patch.object(text, "FILES", files):
            for _ in range(2):
                assert CharacterText(split="all").text == SAMPLE
            assert asked == ["/mirror/input.txt"] and listing(folder) == ["input.txt"]
            write(folder / "data" / "tinyshakespeare", {"input.txt": b"another text\n"})
            assert "is damaged" in error_of(DataError, CharacterText, folder / "data")
    with sandbox(DLSYS_OFFLINE="1"):
        data, printed = quiet(CharacterText, split="all")
        words, _ = quiet(WordText)
    assert printed.count("\n") == 1 and "DLSYS_OFFLINE" in printed and "Opticks" in printed
    assert (
        20_000 < len(data) < 60_000 and data.text.isascii() and data.text.startswith("Query 1. Do not Bodies")
    )
    assert hashlib.md5(data.text.encode()).hexdigest() == "7409dabceb1e118f8affd5db2a22ce41"
    assert len(data.vocabulary) == 73 and len(words.train) > 7_000


def test_windows():
    tokens = np.arange(100, 123)
    for length, stride in ((4, None), (4, 1), (5, 3), (22, None), (1, 1)):
        data = SequenceDataset(tokens, length, stride)
        starts = range(0, 23 - length, stride or length)
        assert len(data) == len(starts)
        for index, start in enumerate(starts):
            x, y = data[index]
            assert x.tolist() == tokens[start : start + length].tolist() and x.dtype == y.dtype == np.int64
            assert y.tolist() == tokens[start + 1 : start + length + 1].tolist()
        x, y = data.batch(np.arange(len(data))[::-1])
        assert x.dtype == np.int64 and x.flags.c_contiguous and y.flags.c_contiguous
        assert [row.tolist() for row in x] == [data[i][0].tolist() for i in range(len(data))][::-1]
        assert [row.tolist() for row in y] == [data[i][1].tolist() for i in range(len(data))][::-1]
    assert SequenceDataset(tokens, 4)[-1][0].tolist() == [116, 117, 118, 119]
    error_of(IndexError, SequenceDataset(tokens, 4).__getitem__, 5)
    assert "hold no window of 23 + 1" in error_of(ShapeError, SequenceDataset, tokens, 23)
    assert "length must be an integer >= 1, not 0" in error_of(ValueError, SequenceDataset, tokens, 0)


@pytest.mark.slow
def test_batches_of_a_text(folder: Path):
    (folder / "mine.txt").write_text(SAMPLE, encoding="utf-8")
    data = CharacterText(folder / "mine.txt")
    loader = data.batches(8, 16, seed=2)
    assert isinstance(loader, DataLoader) and len(loader) == (len(data) - 16) // 8
    places = set()
    for x, y in loader:
        assert x.shape == y.shape == (8, 16) and np.array_equal(x[:, 1:], y[:, :-1])
        assert all(data.decode([*a, b[-1]]) in data.text for a, b in zip(x, y, strict=True))
        places |= {tuple(row) for row in x.tolist()}
    strided = list(data.batches(8, 16, shuffle=False, prefetch=0))
    assert "".join(data.decode(x) for x, _ in strided) == data.text[: (len(data) - 1) // 16 * 16]


# Words -----------------------------------------------------------------------------------------------------


def test_words_of_a_file_and_of_two_files(folder: Path):
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


def test_batchify_and_get_batch_as_in_needle():
    letters = np.arange(26)
    data = batchify(letters, 4)
    assert data.shape == (6, 4) and data.dtype == np.int64 and data.flags.c_contiguous
    assert data[0].tolist() == [0, 6, 12, 18] and data[:, 1].tolist() == list(range(6, 12))
    x, y = get_batch(data, 0, 2)
    assert x.tolist() == [[0, 6, 12, 18], [1, 7, 13, 19]]
    assert y.tolist() == [1, 7, 13, 19, 2, 8, 14, 20]
    x, y = get_batch(data, 4, 35)  # the last row has no successor
    assert x.tolist() == [[4, 10, 16, 22]] and y.tolist() == [5, 11, 17, 23]
    assert "(3,) in 4 columns" in error_of(ShapeError, batchify, [1, 2, 3], 4)
