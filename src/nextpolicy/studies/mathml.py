"""Text with formulas as HTML: what stands between dollars becomes MathML, which browsers draw without a library.

`$V^{pi_k}(s_0) >= 0$`: words of the Greek alphabet are letters, `^` and `_` take one symbol or a group in braces.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_LETTERS = {"beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "mu": "μ", "pi": "π"}
_SIGNS = {"-": "−", ">=": "≥", "<=": "≤", "||": "∥"}
_TOKEN = re.compile(r"\s+|[A-Za-z]+|\d*\.?\d+|>=|<=|\|\||.")


def inline(text: str) -> str:
    """The text as HTML: escaped, with its `$formulas$` as MathML."""
    words = text.split("$")
    if len(words) % 2 == 0:
        raise ValueError(f"text: expected every $ to have a partner, got {text!r}")
    return "".join(formula(part) if i % 2 else html.escape(part) for i, part in enumerate(words))


def plain(text: str) -> str:
    """The text without dollars and braces, where there is no MathML: alt texts and the terminal."""
    return re.sub(r"[${}]", "", text)


def formula(source: str) -> str:
    """One formula as a `<math>` element."""
    tokens = iter([t for t in _TOKEN.findall(source) if not t.isspace()])
    return f"<math>{_row(tokens, end='')}</math>"


def _row(tokens: Iterator[str], end: str) -> str:
    """Elements up to the token `end`, with their sub- and superscripts."""
    done: list[str] = []
    for token in tokens:
        if token == end:
            return "".join(done)
        if token in "^_":
            if not done:
                raise ValueError(f"formula: expected a symbol before {token!r}, got none")
            tag = "msub" if token == "_" else "msup"
            done.append(f"<{tag}>{done.pop()}{_atom(next(tokens, ''), tokens)}</{tag}>")
        else:
            done.append(_atom(token, tokens))
    if end:
        raise ValueError(f"formula: expected {end!r}, got its end")
    return "".join(done)


def _atom(token: str, tokens: Iterator[str]) -> str:
    if token == "{":
        return f"<mrow>{_row(tokens, end='}')}</mrow>"
    if token.isalpha():
        return f"<mi>{_LETTERS.get(token, token)}</mi>"
    if token[-1:].isdigit():
        return f"<mn>{token}</mn>"
    return f'<mo stretchy="false">{html.escape(_SIGNS.get(token, token))}</mo>'
