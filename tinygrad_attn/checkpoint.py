"""A run on disk: arrays in safetensors, the rest in JSON, and one rename that makes both valid together.

A checkpoint is a directory. `save` writes the arrays under a new name, then replaces `checkpoint.json`, which
names them and carries the SHA-256 of it all. That replacement is the only moment that counts: killed before it,
the last checkpoint is still the one that loads; killed after it, the new one is. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .data import CharTokenizer
from .nn import Module
from .nn.pretrained import require_safetensors
from .optim import Optimizer

__all__ = ["CheckpointError", "load", "save"]

MANIFEST = "checkpoint.json"
FORMAT = "tinygrad_attn checkpoint 2"
ARRAY = "array"  # {"array": path} in the JSON stands for an array in the other file


class CheckpointError(ValueError):
    """A checkpoint that is damaged, foreign, of another version, or does not fit what it is loaded into."""


def save(directory: str | Path, model: Module | None = None, optimizer: Optimizer | None = None, **parts: Any) -> None:
    """Write a checkpoint, all of it or nothing: `save("run/checkpoint", model, adamw, step=7, sampling=rng)`.

    Of a model its parameters and generators are saved. Further parts may be a Module, an Optimizer, a
    `np.random.Generator`, a CharTokenizer, or plain data: None, numbers, strings, arrays, and lists and dicts
    (with string keys) of these.

    Raises TypeError for anything else, and OSError if the disk is full, say; the last checkpoint is then intact.
    """
    tensors, directory = require_safetensors(), Path(directory)
    arrays: dict[str, np.ndarray] = {}
    parts = _named(model, optimizer, parts)
    state = {name: _pack(_state_of(part), name, arrays) for name, part in parts.items()}
    blob: bytes = tensors.save(arrays)
    digest = _digest(blob, json.dumps(state))
    name = f"arrays-{digest[:16]}.safetensors"
    manifest = {"format": FORMAT, "arrays": name, "sha256": digest, "state": state}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / name, blob)
        _write(directory / MANIFEST, json.dumps(manifest, indent=1).encode())
    except OSError as error:
        reason = f"{error.strerror}; this checkpoint of {len(blob) / 1e6:.1f} MB was not saved, the last one is intact"
        raise OSError(error.errno, reason, str(directory)) from error
    finally:
        _sweep(directory)


def load(
    directory: str | Path, model: Module | None = None, optimizer: Optimizer | None = None, **parts: Any
) -> dict[str, Any]:
    """Read a checkpoint: everything as plain data, and into the objects given under the names of `save`.

    `load(path)["step"]` is what was saved; `load(path, model, adamw, sampling=rng)` restores those three too.
    Raises FileNotFoundError where there is no checkpoint, and CheckpointError, saying what differs, if it is
    damaged or does not fit; the objects are then as they were.
    """
    directory = Path(directory)
    state = _read(directory)
    parts = _named(model, optimizer, parts)
    for name, part in parts.items():
        if not isinstance(part, Module | Optimizer | np.random.Generator | CharTokenizer):
            raise TypeError(f"load: can't restore {name} in place, a {type(part).__name__}; use what load returns")
        if name not in state:
            raise CheckpointError(f"{directory}: holds no {name!r}, only {', '.join(state)}")
    before = {name: _state_of(part) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            _restore(part, state[name])
    except (ValueError, KeyError, TypeError) as error:
        for restored, part in parts.items():
            _restore(part, before[restored])
        raise CheckpointError(f"{directory}: {name} does not fit, nothing was loaded\n  {error}") from error
    return state


# ---------------------------------------------------------------------------------------------- objects


def _named(model: Module | None, optimizer: Optimizer | None, parts: dict[str, Any]) -> dict[str, Any]:
    named = {"model": model, "optimizer": optimizer}
    return {name: part for name, part in named.items() if part is not None} | parts


def _state_of(part: Any) -> Any:
    """What of an object goes into a checkpoint; plain data is its own state."""
    match part:
        case Module():
            generators = {name: rng.bit_generator.state for name, rng in part.named_generators()}
            return {"parameters": part.state_dict(), "generators": generators}
        case Optimizer():
            return part.state_dict()
        case np.random.Generator():
            return part.bit_generator.state
        case CharTokenizer():
            return part.vocab
    return part


def _restore(part: Any, state: Any) -> None:
    match part:
        case Module():
            part.load_state_dict(state["parameters"])
            for name, rng in part.named_generators():
                if name in state["generators"]:
                    rng.bit_generator.state = state["generators"][name]
        case Optimizer():
            part.load_state_dict(state)
        case np.random.Generator():
            part.bit_generator.state = state
        case CharTokenizer() if part.vocab != state:
            there, here = ("".join(c for c in a if c not in b) for a, b in ((state, part.vocab), (part.vocab, state)))
            sizes = f"the saved vocabulary has {len(state)} characters, this one {len(part.vocab)}"
            raise ValueError(f"{sizes}; only there: {there!r}, only here: {here!r}")


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` for JSON: arrays move to `arrays` and leave {"array": path} behind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            while path in arrays:  # {"a.b": x, "a": {"b": y}}
                path += "'"
            arrays[path] = np.asarray(value, value.dtype.newbyteorder("="), order="C")
            return {ARRAY: path}
        case np.generic() if value.dtype.kind in "biuf":
            return value.item()
        case list() | tuple():
            return [_pack(item, f"{path}.{i}", arrays) for i, item in enumerate(value)]
        case dict() if all(isinstance(key, str) and key != ARRAY for key in value):
            return {key: _pack(item, f"{path}.{key}", arrays) for key, item in value.items()}
    raise TypeError(f"save: can't store {path}, a {type(value).__name__}: {value!r:.80}")


# ---------------------------------------------------------------------------------------------- files


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: temporary file beside it, flushed to the disk, renamed over it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself reaches the disk with its directory
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sweep(directory: Path) -> None:
    """Remove array files that no manifest names: of older checkpoints, and of writers that were killed."""
    with suppress(OSError, CheckpointError, KeyError):
        keep = _manifest(directory)["arrays"]
        for path in directory.glob("arrays-*"):
            if path.name != keep:
                path.unlink()


def _manifest(directory: Path) -> dict[str, Any]:
    """What `checkpoint.json` says, if it is one that this program understands."""
    path, found = directory / MANIFEST, None
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, f"no checkpoint here, a directory that holds {MANIFEST}", str(directory))
    with suppress(ValueError, KeyError, TypeError):
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        found = manifest["format"]
    if found != FORMAT:
        raise CheckpointError(f"{path}: damaged, foreign or of another version: format {found!r} and not {FORMAT!r}")
    return manifest


def _read(directory: Path) -> dict[str, Any]:
    """The state in a checkpoint, with every byte of it checked."""
    manifest = _manifest(directory)
    path = directory / str(manifest.get("arrays"))
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        if _manifest(directory) != manifest:  # replaced while we were reading
            return _read(directory)
        raise CheckpointError(f"{path}: is missing, although {MANIFEST} names it") from None
    text = json.dumps(manifest.get("state"))
    if _digest(blob, text) != manifest.get("sha256"):
        raise CheckpointError(f"{directory}: damaged (its checksum is not the recorded one)")
    arrays = require_safetensors().load(blob)
    state: dict[str, Any] = json.loads(text, object_hook=lambda d: arrays[d[ARRAY]] if ARRAY in d else d)
    return state


def _digest(arrays: bytes, state: str) -> str:
    return hashlib.sha256(arrays + state.encode()).hexdigest()
