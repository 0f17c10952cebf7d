"""Linear maps from the pooled output of each layer into the space of the full embedding, and a token table for layer 0.

`starbucks fit` fits them in closed form on texts without labels (`models.fitting`). A model folder that has them stores
them in projections.safetensors beside the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.models.layer_maps import LayerMap, TokenTable
from starbucks_retrieval.models.weight_files import hash_weights
from starbucks_retrieval.sizes import Size

FILE = "projections.safetensors"
FORMAT = "starbucks_retrieval.projections"
VERSION = 2  # of files with maps that take the token table; others have version 1
TABLE = "token_table"


class Projections(nn.Module):
    """The maps of a model's layers into one space, in which all its sizes are comparable.

    The map of the last layer is a rotation, so inner products of full embeddings do not change, and its first d
    numbers are the subspace of d dimensions that keeps most of them.

    Args:
        maps: {layer: its map}.
        table: The embedding of layer 0, which is also an input of maps, or None.
        fingerprints: {layer: fingerprint of the backbone up to it}, of the model that the maps belong to.
        space: Identifies the maps: embeddings of two layers are comparable if it is equal.
        absent: {layer: digest} of the maps of the space that are not held, as in a model that is cut to fewer layers.
        table_is_input: The table is an input of maps only: there is no layer 0.

    Example:
        >>> import torch
        >>> rotation = LayerMap(torch.eye(2), None, (2,), normalize=False)
        >>> Projections({2: rotation}, None, {2: "…"}, "…").layers
        (2,)
    """

    def __init__(
        self,
        maps: Mapping[int, LayerMap],
        table: TokenTable | None,
        fingerprints: Mapping[int, str],
        space: str,
        absent: Mapping[int, bytes] | None = None,
        table_is_input: bool = False,
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({str(layer): maps[layer] for layer in sorted(maps)})
        self.table = table
        self.fingerprints = dict(fingerprints)
        self.space = space
        self.absent = dict(absent or {})
        self.table_is_input = table_is_input

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have a map, 0 among them if there is a token table; ascending."""
        return (*([] if self.table is None or self.table_is_input else [0]), *map(int, self.maps))

    def map(self, layer: int) -> LayerMap:
        """Return the map of a layer from 1. Raises UserError if it has none."""
        if str(layer) not in self.maps:
            raise _no_map(layer, self.layers)
        found = self.maps[str(layer)]
        assert isinstance(found, LayerMap)
        return found

    @property
    def token_table(self) -> TokenTable:
        """The token table of layer 0. Raises UserError if there is no layer 0."""
        if self.table is None or self.table_is_input:
            raise _no_map(0, self.layers)
        return self.table

    def inputs(self, layers: Iterable[int]) -> set[int]:
        """Return the layers whose outputs the embeddings of `layers` need: 0 for the token table, others of the backbone."""
        return {needed for layer in layers for needed in (self.map(layer).inputs if layer else (0,))}

    def parts(self, layers: Iterable[int]) -> list[nn.Module]:
        """Return the modules that the embeddings of `layers` need: maps, and the token table as the last one."""
        wanted = sorted(set(layers))
        maps: list[nn.Module] = [self.map(layer) for layer in wanted if layer]
        table = self.token_table if 0 in wanted else self.table
        return [*maps, *([table] if table is not None and 0 in self.inputs(wanted) else [])]

    def subset(self, layers: Iterable[int]) -> Projections:
        """Return projections with the maps of some layers only. Raises UserError for a layer that has none."""
        kept = sorted(set(layers))
        maps = {layer: self.map(layer) for layer in kept if layer}
        table = self.token_table if 0 in kept else self.table if 0 in self.inputs(kept) else None
        absent = {layer: found for layer, found in self._digests().items() if layer not in kept}
        return Projections(maps, table, self.fingerprints, self.space, absent, table_is_input=0 not in kept)

    def cut(self, size: Size) -> Projections:
        """Return a copy that holds what one size needs, in the same space.

        That is the first rows of the map of its layer, and the token table if that is an input of the map; for layer 0
        the first columns of the token table. Raises UserError if the layer has no map.

        Example:
            >>> import torch
            >>> whole = Projections({1: LayerMap(torch.eye(3), torch.ones(3), (1,), normalize=True)}, None, {}, "")
            >>> tuple(whole.cut(Size(1, 2)).map(1).weight.shape)
            (2, 3)
        """
        maps, table = {}, self.table
        if size.layer == 0:
            whole = self.token_table
            table = TokenTable(whole.rows.detach()[:, : size.dim].clone(), whole.counted)
        else:
            found = self.map(size.layer)
            bias = None if found.bias is None else found.bias.detach()[: size.dim].clone()
            maps[size.layer] = LayerMap(found.weight.detach()[: size.dim].clone(), bias, found.inputs, found.normalize)
            table = table if 0 in found.inputs else None  # whole: it is an input
        return Projections(maps, table, self.fingerprints, self.space, None, table_is_input=size.layer > 0)

    def digest(self, layer: int) -> bytes:
        """Return a digest of the map of a layer and, if that is an input, of the token table; for layer 0 of the table."""
        hasher = hashlib.blake2b(digest_size=16)
        for module in self.parts([layer]):
            hash_weights(hasher, module.state_dict())
        return hasher.digest()

    def check(self, fingerprints: Sequence[str], name: str) -> None:
        """Check that the maps belong to a backbone.

        Args:
            fingerprints: Those of the backbone truncated to 0, 1, 2, … layers.
            name: The model, for the message.

        Raises:
            UserError: They were fitted on other weights.
        """
        for layer, expected in self.fingerprints.items():
            if layer < len(fingerprints) and fingerprints[layer] != expected:
                raise UserError(
                    f"{FILE} of {name} belongs to other weights, which differ up to layer {layer}",
                    "run starbucks fit on this model again",
                )

    def save(
        self,
        folder: str | Path,
        fingerprints: Mapping[int, str] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write projections.safetensors, atomically.

        Args:
            folder: The model folder.
            fingerprints: Those of the backbone. Where training has changed them or the maps, they identify a new
                space; a model that is only cut to fewer layers keeps its space.
            weights: Written in place of the maps' own weights, by name, as when they are gathered from several
                processes.
        """
        from safetensors.torch import save

        if weights is not None:
            whole = self._with_weights(weights)
            whole.save(folder, fingerprints)
            self.fingerprints, self.space = whole.fingerprints, whole.space
            return
        digests = self._digests()  # each reads the whole token table
        if fingerprints is not None:
            self.fingerprints |= fingerprints
            self.space = self._identity(digests)
        tensors = {}
        for layer, module in self.maps.items():
            assert isinstance(module, LayerMap)
            tensors[f"layer_{layer}.weight"] = module.weight
            if module.bias is not None:
                tensors[f"layer_{layer}.bias"] = module.bias
        if self.table is not None:
            tensors[TABLE] = self.table.rows
        takes_table = any(0 in self.map(int(layer)).inputs for layer in self.maps)
        described = {
            "format": FORMAT,
            "version": str(VERSION if takes_table else 1),
            "space": self.space,
            "fingerprints": json.dumps(self.fingerprints),
            "digests": json.dumps({layer: digest.hex() for layer, digest in digests.items()}),
            "inputs": json.dumps({layer: self.map(int(layer)).inputs for layer in self.maps}),
            "normalize": json.dumps({layer: self.map(int(layer)).normalize for layer in self.maps}),
        } | ({"table_is_input": "true"} if takes_table and self.table_is_input else {})
        content = save({name: t.detach().float().cpu().contiguous() for name, t in tensors.items()}, described)
        with atomic_writer(Path(folder) / FILE) as file:
            file.write(_with_sorted_header(content))

    def _with_weights(self, weights: Mapping[str, Tensor]) -> Projections:
        maps = {}
        for name in self.maps:
            own, bias = self.map(int(name)), weights.get(f"maps.{name}.bias")
            maps[int(name)] = LayerMap(weights[f"maps.{name}.weight"], bias, own.inputs, own.normalize)
        table = None if self.table is None else TokenTable(weights["table.rows"])
        return Projections(maps, table, self.fingerprints, self.space, self.absent, self.table_is_input)

    def _digests(self) -> dict[int, bytes]:
        """Return the digests of all maps of the space, held or not, by layer in ascending order."""
        found = self.absent | {layer: self.digest(layer) for layer in self.layers}
        return dict(sorted(found.items()))

    def identity(self) -> str:
        """Return a digest of all maps and of the backbone that they belong to, as 32 hex digits."""
        return self._identity(self._digests())

    def _identity(self, digests: Mapping[int, bytes]) -> str:
        hasher = hashlib.blake2b(json.dumps(sorted(self.fingerprints.items())).encode(), digest_size=16)
        for digest in digests.values():
            hasher.update(digest)
        return hasher.hexdigest()

    @classmethod
    def load(cls, path: str | Path, layers: int | None = None) -> Projections:
        """Read projections.safetensors.

        Args:
            path: The file.
            layers: Read only the maps up to this layer; None reads all.

        Raises:
            UserError: The file is damaged, of another kind or of a newer version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                described = file.metadata() or {}
                _check_format(described, path)
                inputs = {int(layer): tuple(found) for layer, found in json.loads(described["inputs"]).items()}
                normalize: dict[str, bool] = json.loads(described["normalize"])
                names = set(file.keys())
                maps = {}
                for layer in inputs:
                    if layers is not None and max(layer, *inputs[layer]) > layers:
                        continue
                    bias = f"layer_{layer}.bias"
                    weight = file.get_tensor(f"layer_{layer}.weight")
                    if weight.shape[1] != len(inputs[layer]) * weight.shape[0]:
                        raise ValueError("the map has other inputs")
                    maps[layer] = LayerMap(
                        weight,
                        file.get_tensor(bias) if bias in names else None,
                        inputs[layer],
                        normalize[str(layer)],
                    )
                table = TokenTable(file.get_tensor(TABLE)) if TABLE in names else None
                fingerprints = {int(layer): text for layer, text in json.loads(described["fingerprints"]).items()}
                found = cls(maps, table, fingerprints, described["space"], None, "table_is_input" in described)
                digests: dict[str, str] = json.loads(described.get("digests", "{}"))
                found.absent = {
                    int(n): bytes.fromhex(text) for n, text in digests.items() if int(n) not in found.layers
                }
                return found
        except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({type(error).__name__})", "run starbucks fit again") from None


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file whose header is sorted: safetensors writes the metadata in a random order."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the numbers after it are aligned
    return len(header).to_bytes(8, "little") + header + content[start:]


def _no_map(layer: int, layers: Sequence[int]) -> UserError:
    return UserError(
        f"this model has no projection for layer {layer}, only for {', '.join(map(str, layers))}",
        "run starbucks fit with --layers that name it",
    )


def _check_format(described: Mapping[str, Any], path: str | Path) -> None:
    if described.get("format") != FORMAT:
        raise UserError(f"{path} does not hold projections", "name the file that starbucks fit wrote")
    if int(described["version"]) > VERSION:
        raise UserError(f"{path} has the newer format {described['version']}", "update starbucks_retrieval")
