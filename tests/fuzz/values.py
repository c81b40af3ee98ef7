"""Values that are wrong, odd, or large enough to hurt."""

from __future__ import annotations

import random
from typing import Any


def words(line: str) -> list[str]:
    """The words of a line."""
    return line.split()


NUMBERS = words(
    "0 -0 -1 1 0.5 2.5 1e18 1e300 1e309 -1e300 1e-400 nan NaN -nan inf -inf Infinity 99999999999999999999999 "
    "983505767519 1000000000 -1000000000 100000000 2147483647 2147483648 4294967295 4294967296 9007199254740993 "
    "9223372036854775807 9223372036854775808 10001 1000001 1_000 0x10 0b1 1e3 1. .5 +3 1e 3j 1/2 1,5"
)
NUMBERS += ["9" * 400, "9" * 5000, "-" + "9" * 30, "٣", "1 000", " 7 "]
WORDS = [
    *("", " ", "true", "false", "yes", "none", "null", "[]", "[[1]]", "{}", "a=b", "=", "a=", "=1", "a=b=c", "a=nan"),
    *(
        "a=1e400",
        "x" * 3000,
        "\n",
        "a\nb",
        "a\tb",
        "\x00",
        "é",
        "\ud800",
        "\u2028",
        "%s",
        "{0}",
        "$HOME",
        "~",
        "'",
        '"',
    ),
    *(
        ",",
        ",,",
        "1,,2",
        "0,0",
        "1,2,3",
        "--",
        "-",
        "--seeds",
        "-h",
        "../..",
        ".",
        "/dev/null",
        "*",
        "\x1b[31m",
        "None",
    ),
]
MISSPELT = words(
    "lr n_envs n-envs ent_coef vf_coef total_timesteps n_steps num_steps num_minibatches n_epochs update_epochs "
    "batch_size gae_lambda clip_range clip_coef clip_eps anneal_lr seed env_id total_steps policy_kwargs "
    "normalize_advantage learning-rat num_envs LR GAMMA verbose device x y-z preset env self"
)


def text(rng: random.Random) -> str:
    """One argument."""
    return rng.choice(NUMBERS if rng.random() < 0.6 else WORDS)


def json_value(rng: random.Random, depth: int = 0) -> Any:
    """What JSON may hold where something else was meant."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind <= 2:
        return rng.choice([0, 1, -1, 2, 7, 10**9, 10**18, -(10**18), 2**31, 2**32, 2**63, 10**30, 10**400, 10**4000])
    if kind <= 4:
        odd = [float("nan"), float("inf"), float("-inf")]
        return rng.choice([0.5, -0.5, 1.5, 1e300, -1e300, 1e-320, *odd])
    if kind <= 6:
        return text(rng)
    size = rng.choice([0, 1, 1, 2, 3])
    if kind == 7:
        return [json_value(rng, depth + 1) for _ in range(size)]
    return {rng.choice(["a", "lam", "member", "", "self", "é"]): json_value(rng, depth + 1) for _ in range(size)}


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes as a bad disk, a bad editor or a cut connection leaves them."""
    if rng.random() < 0.08:
        deep = rng.choice([b"[", b'{"a":', b"a = [", b"[[", b"-"])
        return rng.choice(
            [b"", b"\x00" * 64, b"\xff\xfe", b"null", b"[]", b"{}", b"3", b'"x"', deep * 60_000, data * 2]
        )
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(5)
        if what == 0:
            data = data[:at]
        elif what == 1:
            data = data[:at] + data[at + rng.randrange(1, 20) :]
        elif what == 2:
            data = data[:at] + text(rng).encode("utf-8", "surrogatepass") + data[at:]
        elif what == 3 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        else:
            data = data[:at] + rng.choice([b"\n", b"\xff", b'"', b"[", b"]", b"{", b"}", b",", b"=", b"#"]) + data[at:]
    return data
