"""The probe's arithmetic: signs and hashes by place, shards that add up to the whole, names that no layout changes."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attuner.runner.probe.measure import Rule
from attuner.runner.probe.numbers import axis_keys, bits_hash, chunks, hexadecimal, key_of, mixed, projection, scramble
from attuner.runner.probe.piece import Piece, family, global_name


def piece(values: torch.Tensor, name: str = "w", shard: tuple[int, int] = (0, 1), split: tuple[int, int] = (0, 1)) -> Piece:
    return Piece(name, values, shard, split, expert=False, lo=0, hi=values.numel(), twin=False)


def project(values: torch.Tensor, **keys: Any) -> float:
    places, flat = piece(values, **keys).places(), values.reshape(-1).double()
    return float(sum(projection(flat[lo:hi], k) for lo, hi, k in chunks(places, 0, flat.numel())))


def hashed(values: torch.Tensor, lo: int = 0, hi: int | None = None) -> int:
    places, flat = piece(values).places(), values.reshape(-1)
    return sum(int(bits_hash(flat[a:b], k)) for a, b, k in chunks(places, lo, flat.numel() if hi is None else hi))


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))


def test_scrambling_is_one_to_one_and_touches_every_bit() -> None:
    values = torch.cat([torch.arange(-5000, 5000), torch.arange(5000) << 48])
    mixed_up = scramble(values.clone())
    assert mixed_up.unique().numel() == values.unique().numel()
    flipped = scramble(values.clone() ^ (1 << 63))  # an arithmetic shift would lose exactly this bit
    assert (flipped != mixed_up).all()


def test_keys_are_the_same_in_every_process() -> None:
    assert key_of("embedding.word_embeddings.weight") == 3523496636857590847
    assert hexadecimal(-1) == "f" * 16
    assert mixed(torch.tensor([1, 2]), torch.tensor([2, 1])).unique().numel() == 2


def test_signs_are_balanced_and_rows_of_them_unrelated() -> None:
    signs = piece(torch.zeros(64, 256)).places().keys(0, 64 * 256).view(64, 256).sign().double()
    assert abs(signs.mean()) < 0.03
    alike = signs @ signs.T / 256 - torch.eye(64)
    assert alike.abs().max() < 0.4


def test_a_projection_is_about_as_large_as_the_norm() -> None:
    values = matrix(300, 70)
    assert 0.01 < abs(project(values)) / float(values.norm()) < 4


def test_exchanged_rows_columns_and_names_are_seen() -> None:
    values = matrix(8, 16)
    right = project(values)
    for axis, size in ((0, 8), (1, 16)):
        for other in range(1, size):
            order = torch.arange(size)
            order[[0, other]] = order[[other, 0]]
            assert abs(project(values.index_select(axis, order)) - right) > 1e-6
    first, second = "layers.0.mlp.experts.0.linear_fc1.weight", "layers.0.mlp.experts.1.linear_fc1.weight"
    one, two = values, values.flip(0) * 2
    straight = project(one, name=first) + project(two, name=second)
    crossed = project(two, name=first) + project(one, name=second)
    assert abs(straight - crossed) > 1e-3


@pytest.mark.parametrize(("axis", "blocks"), [(0, 1), (0, 2), (1, 1)])
def test_tensor_parallel_shards_project_to_the_whole(axis: int, blocks: int) -> None:
    whole, ranks = matrix(24, 32), 4
    parts = [torch.cat([b.chunk(ranks, axis)[rank] for b in whole.chunk(blocks, axis)], axis) for rank in range(ranks)]
    total = sum(project(part, shard=(rank, ranks), split=(axis, blocks)) for rank, part in enumerate(parts))
    assert total == pytest.approx(project(whole), abs=1e-9)
    wrong = sum(project(part, shard=(rank, ranks), split=(axis, blocks)) for rank, part in enumerate(parts[::-1]))
    assert abs(wrong - project(whole)) > 1e-3


def test_ranges_of_a_sharded_optimizer_add_up() -> None:
    values = matrix(50, 33)
    cuts = [0, 7, 640, 1000, 1650]
    parts = sum(hashed(values, lo, hi) for lo, hi in itertools.pairwise(cuts))
    assert hexadecimal(parts) == hexadecimal(hashed(values))


def test_chunks_are_bounded_and_cover_the_range_once() -> None:
    places = piece(torch.zeros(700, 300)).places()
    found = list(chunks(places, 1000, 209_000))
    assert [lo for lo, _, _ in found[1:]] == [hi for _, hi, _ in found[:-1]]
    assert (found[0][0], found[-1][1]) == (1000, 209_000)
    assert max(hi - lo for lo, hi, _ in found) <= 1 << 16
    assert torch.equal(torch.cat([keys for _, _, keys in found]), places.keys(1000, 209_000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_hash_sees_one_bit_one_swap_and_the_sign_of_zero(dtype: torch.dtype) -> None:
    values = matrix(9, 11).to(dtype)
    values[3, 3] = 0
    others = [values.clone() for _ in range(3)]
    others[0][5, 5] = torch.nextafter(values[5, 5], values[5, 5] + 1)
    others[1][[0, 1]] = others[1][[1, 0]]
    others[2][3, 3] = -0.0
    assert len({hashed(values), *(hashed(other) for other in others)}) == 4
    assert hashed(values) == hashed(values.clone())


def test_vectors_and_axis_keys_have_signs_too() -> None:
    vector = torch.arange(1, 6).double()
    assert project(vector) != project(vector.flip(0))
    assert (axis_keys(1, torch.arange(9)) & 1 == 1).all()


NAMES = {
    "embedding.word_embeddings.weight": "embedding",
    "embedding.position_embeddings.weight": "position",
    "decoder.layers.3.input_layernorm.weight": "layer_norm",
    "decoder.layers.3.pre_mlp_layernorm.bias": "layer_norm",
    "decoder.layers.3.self_attention.q_layernorm.weight": "qk_norm",
    "decoder.layers.3.self_attention.kv_layernorm.weight": "qk_norm",
    "decoder.layers.3.self_attention.linear_qkv.weight": "qkv",
    "decoder.layers.3.self_attention.linear_qkv.bias": "other",
    "decoder.layers.3.self_attention.linear_proj.weight": "attn_proj",
    "decoder.layers.3.self_attention.linear_q_down_proj.weight": "mla",
    "decoder.layers.3.self_attention.linear_kv_up_proj.weight": "mla",
    "decoder.layers.3.mlp.linear_fc1.weight": "mlp_fc1",
    "decoder.layers.3.mlp.linear_fc2.weight": "mlp_fc2",
    "decoder.layers.3.mlp.router.weight": "router",
    "decoder.layers.3.mlp.shared_experts.linear_fc1.weight": "shared_fc1",
    "decoder.layers.3.mlp.shared_experts.gate_weight": "other",
    "decoder.layers.3.mlp.experts.7.linear_fc1.weight": "expert_fc1",
    "decoder.layers.3.mlp.experts.7.linear_fc2.weight": "expert_fc2",
    "decoder.final_layernorm.weight": "final_norm",
    "output_layer.weight": "output",
    "mtp.layers.0.eh_proj.weight": "mtp",
    "mtp.layers.0.enorm.weight": "layer_norm",
    "mtp.layers.0.final_layernorm.weight": "final_norm",
    "mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight": "mtp",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_its_family(name: str) -> None:
    assert family(name) == NAMES[name]


class Tree(SimpleNamespace):
    """Modules by name, as getattr finds them in torch's."""

    def __getattr__(self, name: str) -> "Tree":
        return Tree()


def test_layers_and_experts_count_through_the_whole_model() -> None:
    core = Tree(decoder=Tree(layers=Tree(**{"1": Tree(layer_number=8)})))
    local = "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight"
    grouped = "decoder.layers.1.mlp.experts.linear_fc1.weight2"
    for name in (local, grouped):
        assert global_name(core, name, 4) == "decoder.layers.7.mlp.experts.6.linear_fc1.weight"
    shared = "decoder.layers.1.mlp.shared_experts.linear_fc1.weight"
    assert global_name(core, shared, 4) == "decoder.layers.7.mlp.shared_experts.linear_fc1.weight"
    fused = "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"
    assert global_name(core, fused, 4) == "decoder.layers.7.input_layernorm.weight"


@pytest.mark.parametrize("fresh", [True, False])
def test_adams_direction_is_torchs(fresh: bool) -> None:
    weight = torch.nn.Parameter(matrix(5, 7).double())
    optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    if not fresh:
        weight.grad = matrix(5, 7).double() * 0.3
        optimizer.step()
    states = [optimizer.state[weight][name].clone() for name in ("exp_avg", "exp_avg_sq")] if not fresh else [None, None]
    before, weight.grad = weight.detach().clone(), matrix(5, 7).double().flip(0)
    optimizer.step()
    direction = Rule("adam", (0.9, 0.95), 1e-8).direction(weight.grad, states, 0 if fresh else 1, {})
    assert torch.allclose(before - 1e-3 * direction, weight.detach(), rtol=0, atol=1e-15)


def test_what_no_rule_explains_is_said() -> None:
    assert "muon" in Rule("muon").explainable()
    assert "decoupled" in Rule("adam", decoupled_decay=False).explainable()
    assert Rule("sgd").explainable() == ""
