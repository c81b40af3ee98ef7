"""Raw HTTP requests to the watch server: bad methods, paths, encodings, headers, and connections left half open."""

from __future__ import annotations

import random
from collections.abc import Iterator

METHODS = ["GET"] * 20 + [
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "get",
    "",
    "G\x00T",
    "X" * 300,
]
PATHS = ["/", "/version"] * 6
PATHS += ["/?x", "/config.json", "/metrics", "*", "", "//", "/%00", "/\x00", "/..", "\\..\\secret.txt"]
UPS = ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%252f", "..\\", "....//", "%c0%ae%c0%ae/", "/./../"]
FILES = ["secret.txt", "etc/passwd", "run/config.json", "proc/self/environ"]
HOSTS = ["127.0.0.1", "localhost", "localhost:80"] * 3
HOSTS += ["elsewhere.example", "", "127.0.0.1.example", "\xff", "[::1"]
VERSIONS = ["HTTP/1.1"] * 9
VERSIONS += ["HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "HTTP/1.1.1", "HTTX/1", "", "HTTP/1e9", "HTTP/-1.1"]
ODD_HEADERS = ["X: " + "y" * 70_000, "no colon", ": empty", "A: b\r\n c", "Content-Length: -1", "\x00: \x00", "É: é"]
ODD_HEADERS += ["Expect: 100-continue", "Transfer-Encoding: chunked", "Range: bytes=0-1", "Content-Length: 9" * 50]
ENDS = ["\r\n\r\n"] * 10 + ["\n\n", "\r\n", "", "\r\r"]


def path(rng: random.Random) -> str:
    """A path, most often one that tries to leave the folder."""
    if rng.random() < 0.4:
        return rng.choice(PATHS)
    if rng.random() < 0.1:
        return "/" + rng.choice(["a", "%41", "../"]) * rng.choice([1000, 30_000, 70_000])
    start = rng.choice(["/", "", "http://127.0.0.1/", "file:///"])
    return start + rng.choice(UPS) * rng.randint(0, 9) + rng.choice(FILES)


def request(rng: random.Random) -> bytes:
    """One request, as bytes."""
    first = " ".join([rng.choice(METHODS), path(rng), rng.choice(VERSIONS)])
    headers = [f"Host: {rng.choice(HOSTS)}"] * (rng.random() < 0.9)
    headers += rng.choices(ODD_HEADERS, k=rng.choice([0, 0, 0, 1, 2]))
    headers += ["A: b"] * rng.choice([0, 0, 0, 0, 0, 150])
    data = ("\r\n".join([first, *headers]) + rng.choice(ENDS)).encode("utf-8", "replace")
    if rng.random() < 0.15:
        data = data[: rng.randrange(len(data) + 1)]
    return rng.randbytes(rng.randrange(300)) if rng.random() < 0.05 else data


def requests(seed: int, count: int) -> Iterator[bytes]:
    """`count` requests, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield request(rng)
