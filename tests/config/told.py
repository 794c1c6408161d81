"""What is told of configurations that cannot be meant, and the secrets that nobody is to be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.source import ConfigError

SECRET = "correct-horse-battery"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def faults(file: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The faults that loading `text` raises, the file's directory left away."""
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(file, environ or {}, {})
    return str(raised.value).replace(f"{file.parent}/", "").splitlines()
