"""Text: characters or words as numbers, in sequences.

If no other text can be found, it is a part of Isaac Newton's Opticks, fourth edition, London 1730
(the Queries 1 to 28 at the end of Book III): 48 KB in `opticks.txt` beside this file, in the public domain, from
the transcription by the Distributed Proofreaders that tvm_ffi (3rdparty/libbacktrace) ships, without its
footnotes and marks of italics, in ASCII.
"""

from __future__ import annotations

import io
import os
import pkgutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, DTypeError, ShapeError
from .dataset import DataArgumentError, Dataset, integer
from .files import Collection, UnavailableError, load, read

FILES = Collection(
    name="tinyshakespeare",
    files={"input.txt": "6fb458f1232090904fb40fe944165e91"},
    mirrors=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/{}",),
)
EMBEDDED = "opticks.txt"
TRAIN_SHARE = 0.9
EOS, UNKNOWN = "<eos>", "<unk>"


def read_text(root: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """The text of the file `root`, or tinyshakespeare; and where it came from, as text.

    tinyshakespeare is looked for in the directory `root`, or by default in `DLSYS_DATA`, then in the cache, then at the
    mirror. If it cannot be found, the text of this package is used instead, and one printed line says so. Raises
    DataError as `files.load` does, and for a file that is no UTF-8 or empty.
    """
    if root is not None and (path := Path(root).expanduser()).is_file():
        content, source = read(path), str(path)
    else:
        try:
            files, source = load(FILES, root)
            content = files["input.txt"]
        except UnavailableError as error:
            print(f"tinyshakespeare is not available ({error}): using a part of Newton's Opticks.", flush=True)
            content = pkgutil.get_data(__package__, EMBEDDED) or b""  # also from a zip file
            source = "Newton's Opticks, Queries 1 to 28"
    if not content:
        raise DataError(f"{source} holds no text")
    return decoded(content, source), source


def decoded(content: bytes, origin: object) -> str:
    """The text of UTF-8 bytes. Raises DataError, which names the origin and the first wrong byte."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise DataError(f"{origin} is no UTF-8 text: byte 0x{byte:02x} at {error.start}") from None


class SequenceDataset(Dataset):
    """Windows of a sequence of tokens: sample i is (x, y), int64 (length,) each, where y[j] follows x[j] in the text.

    Window i begins at i * stride; with the default stride, `length`, every token is in one window. With `stride=1` and
    a shuffling loader the windows begin at random places; an epoch then has nearly as many windows as there are tokens,
    so train for a number of steps instead.

    Raises DTypeError for tokens that are no integers, ShapeError for fewer than length + 1.
    """

    def __init__(self, tokens: Any, length: int, stride: int | None = None) -> None:
        self.tokens: np.ndarray = np.asarray(tokens)
        self.length: int = integer("SequenceDataset", "length", length)
        self.stride: int = self.length if stride is None else integer("SequenceDataset", "stride", stride)
        if not np.issubdtype(self.tokens.dtype, np.integer):
            raise DTypeError(f"SequenceDataset: tokens are integers, not {self.tokens.dtype}")
        if self.tokens.ndim != 1 or len(self.tokens) <= self.length:
            raise ShapeError(f"SequenceDataset: {self.tokens.shape} tokens hold no window of {self.length} + 1")
        self.tokens = self.tokens.astype(np.int64, copy=False)

    def __len__(self) -> int:
        return (len(self.tokens) - self.length - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.batch(np.array([range(len(self))[index]]))
        return x[0], y[0]

    def batch(self, indices: np.ndarray) -> Any:
        windows = np.lib.stride_tricks.sliding_window_view(self.tokens, self.length + 1)
        chosen = windows[np.asarray(indices) * self.stride]
        return np.ascontiguousarray(chosen[:, :-1]), np.ascontiguousarray(chosen[:, 1:])


class CharacterText:
    """A text as int64 numbers of its characters: tinyshakespeare, or the file `root`, see `read_text`.

    Attributes:
        train, test: the characters' numbers, int64 (n,), of the first 90 % and of the rest.
        vocabulary: the sorted characters of the text; number i is `vocabulary[i]`.
        source: where the text came from.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        text, self.source = read_text(root)
        self.vocabulary: str = "".join(sorted(set(text)))
        self.train, self.test = np.split(self.encode(text), [int(len(text) * TRAIN_SHARE)])

    def __repr__(self) -> str:
        sizes = f"{len(self.train)} / {len(self.test)} characters of {len(self.vocabulary)}"
        return f"CharacterText({sizes}, source={self.source!r})"

    def encode(self, text: str) -> np.ndarray:
        """The numbers of the characters, int64 (n,). Raises DataError for one that is not in the vocabulary."""
        numbers = {character: number for number, character in enumerate(self.vocabulary)}
        try:
            return np.fromiter(map(numbers.__getitem__, text), np.int64, len(text))
        except KeyError as error:
            place = f"the character {error} at {text.index(error.args[0])}"
            raise DataError(f"{place} is not in the vocabulary: {self.vocabulary!r}") from None

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of these numbers. Raises DataArgumentError for one outside the vocabulary."""
        numbers = [integer("decode", "a token", token, 0) for token in np.ravel(tokens).tolist()]
        if max(numbers, default=-1) >= len(self.vocabulary):
            raise DataArgumentError(f"decode: token {max(numbers)} of {len(self.vocabulary)}")
        return "".join(self.vocabulary[number] for number in numbers)


class Dictionary:
    """Words and their numbers, in order of appearance."""

    def __init__(self) -> None:
        self.word2idx: dict[str, int] = {}
        self.idx2word: list[str] = []

    def add_word(self, word: str) -> int:
        """The number of `word`, which is added if it is new."""
        if word not in self.word2idx:
            self.word2idx[word] = len(self.idx2word)
            self.idx2word.append(word)
        return self.word2idx[word]

    def __len__(self) -> int:
        return len(self.idx2word)


class WordText:
    """A text as int64 numbers of its words, for word-level models.

    Words are separated by white space; every line ends in `<eos>`. `root` is a directory with train.txt and test.txt
    (such as Penn Treebank's), or an argument of `read_text`, whose first 90 % of lines are for training. With
    `max_words` only the most frequent words of the training part have numbers; all others are `<unk>`.

    Attributes:
        train, test: the words' numbers, int64 (n,).
        dictionary: the `Dictionary` of both.
        source: where the text came from.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, max_words: int | None = None) -> None:
        files = [] if root is None else [Path(root).expanduser() / name for name in ("train.txt", "test.txt")]
        if files and all(file.is_file() for file in files):
            train, test = (_lines(decoded(read(file), file)) for file in files)
            self.source = str(root)
        else:
            text, self.source = read_text(root)
            lines = _lines(text)
            end = int(len(lines) * TRAIN_SHARE)
            train, test = lines[:end], lines[end:]
        parts = [[word for line in lines for word in (*line.split(), EOS)] for lines in (train, test)]
        if max_words is not None:
            common = Counter(parts[0]).most_common(integer("WordText", "max_words", max_words))
            known = {EOS, *(word for word, _ in common)}
            parts = [[word if word in known else UNKNOWN for word in words] for words in parts]
        self.dictionary: Dictionary = Dictionary()
        self.train, self.test = (np.array([*map(self.dictionary.add_word, words)], np.int64) for words in parts)

    def __repr__(self) -> str:
        sizes = f"{len(self.train)} / {len(self.test)} words of {len(self.dictionary)}"
        return f"WordText({sizes}, source={self.source!r})"


def _lines(text: str) -> list[str]:
    return io.StringIO(text).readlines()


def batchify(tokens: Any, batch_size: int) -> np.ndarray:
    """The tokens in `batch_size` columns, each a part of the sequence, int64 (n, batch_size); the rest is left out.
    Raises ShapeError for fewer tokens than columns."""
    tokens = np.asarray(tokens)
    rows = len(tokens) // integer("batchify", "batch_size", batch_size)
    if tokens.ndim != 1 or rows == 0:
        raise ShapeError(f"batchify: tokens of shape {tokens.shape} in {batch_size} columns")
    columns = tokens[: rows * batch_size].reshape(batch_size, rows)
    return np.ascontiguousarray(columns.T, dtype="int64")
