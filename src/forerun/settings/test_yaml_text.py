"""Settings are read as before; what is ambiguous, too large or a program is refused with its line, at once."""

import time

import pytest
import yaml

from forerun.errors import InvalidSettings
from forerun.settings.yaml_text import LARGEST_BYTES, parse_yaml, read_yaml


def alias_bomb(depth):
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth)]
    return "\n".join(lines)


def test_yaml_is_read_as_the_safe_loader_does():
    for text in ("", "a: 1", "a: &x {b: 2}\nc: *x\nd: {<<: *x, b: 3}", "- 2026-11-23\n- 1e5\n- yes", "\ufeffa: 1"):
        assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed: 1\nseed: 2", "line 2: the key 'seed' is there twice, first in line 1"),
        ("a: {b: 1,\n  b: 2}", "'b' is there twice"),
        (alias_bomb(9), "aliases stand for more than 20,000 values"),
        ("a: &a [*a]", "stands for what it is in itself"),
        ("[" * 10_000, "at most 24 levels"),
        ("- 1\n" * 30_000, "20,000 values"),
        ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        ("a: !own 7", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: *b", "undefined alias"),
        ("a: \0", "special characters are not allowed"),
        ("a: 2026-02-30", "day is out of range"),
        ("a: " + "9" * 5_000, "digits"),
    ],
)
def test_what_nobody_means_is_refused(text, reason):
    start = time.monotonic()
    with pytest.raises((yaml.YAMLError, ValueError), match=reason):
        parse_yaml(text)
    assert time.monotonic() - start < 5


def test_files_that_cannot_be_read_say_so(tmp_path):
    (tmp_path / "large.yaml").write_bytes(b"#" * (LARGEST_BYTES + 1))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    reasons = {"large.yaml": "256 KiB", "bytes.yaml": "is not YAML", "": "a folder", "none.yaml": "nothing there"}
    for name, reason in {**reasons, "x" * 300: "too long", "a\0b": "cannot be read"}.items():
        with pytest.raises(InvalidSettings, match=reason):
            read_yaml(tmp_path / name, "Settings")
    with pytest.raises(InvalidSettings, match="no file"):
        read_yaml(type(tmp_path)("/dev/zero"), "Settings")
