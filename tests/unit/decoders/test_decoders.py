"""From a config to a network, its cost, and its checkpoint."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import autoqec.decoders.modules as own_surface
from autoqec.contracts.dsl import FAMILIES, GnnConfig, PredecoderDSL, parse_dsl
from autoqec.decoders import checkpoint, flops
from autoqec.decoders.base import Predecoder, ProblemView
from autoqec.decoders.dsl_compiler import compile_for_cost, compile_predecoder
from autoqec.decoders.modules.conv import lattice
from autoqec.decoders.modules.gnn import ATTENTION
from autoqec.decoders.modules.neural_bp import check_messages, xor_log_odds
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from tests.support.envs import problem, repetition

MLP = {"type": "mlp", "mlp": {"hidden": 16}}
GNN = {"type": "gnn", "gnn": {"hidden": 6, "layers": 2}}
NBP = {"type": "neural_bp", "neural_bp": {"iterations": 3}}
CONV = {"type": "conv", "conv": {"channels": 4, "layers": 2}}
LOCAL = {"type": "local", "local": {"hidden": 8, "space": 1, "time": 1}}
ALL = [MLP, GNN, NBP, CONV, LOCAL]


def options(field: str) -> list[str]:
    """Return every option of a gnn setting except custom code, which has its own tests."""
    return [name for name in get_args(GnnConfig.model_fields[field].annotation) if name != "custom"]


SETTINGS: list[tuple[dict[str, Any], str, list[Any]]] = [
    (MLP, "mlp.inputs", ["other_sector", "all"]),
    (MLP, "mlp.hidden", [8, 16]),
    (MLP, "mlp.depth", [1, 2, 3]),
    (MLP, "mlp.activation", ["relu", "gelu", "silu"]),
    (MLP, "mlp.skip", [True, False]),
    (MLP, "head", ["linear", "mlp_small"]),
    (GNN, "gnn.inputs", ["other_sector", "all"]),
    (GNN, "gnn.hidden", [4, 6]),
    (GNN, "gnn.layers", [1, 2, 3]),
    (GNN, "gnn.message_fn", options("message_fn")),
    (GNN, "gnn.aggregation", options("aggregation")),
    (GNN, "gnn.normalization", options("normalization")),
    (GNN, "gnn.residual", [True, False]),
    (GNN, "gnn.edge_features", [True, False]),
    (GNN, "head", ["linear", "mlp_small"]),
    *((GNN | {"gnn": GNN["gnn"] | {"message_fn": kind}}, "gnn.edge_features", [True, False]) for kind in ATTENTION),
    (NBP, "neural_bp.inputs", ["other_sector", "all"]),
    (NBP, "neural_bp.iterations", [2, 3, 4]),
    (NBP, "neural_bp.weight_sharing", ["none", "per_layer", "per_check"]),
    (NBP, "neural_bp.damping", ["fixed", "learnable_scalar", "learnable_per_iter"]),
    (NBP, "neural_bp.attention_aug", [True, False]),
    (NBP | {"neural_bp": {"iterations": 3, "attention_aug": True}}, "neural_bp.heads", [1, 2, 4]),
    (CONV, "conv.inputs", ["other_sector", "all"]),
    (CONV, "conv.channels", [4, 6]),
    (CONV, "conv.layers", [1, 2, 3]),
    (CONV, "conv.kernel", [3, 5]),
    (CONV, "conv.residual", [True, False]),
    (CONV, "head", ["linear", "mlp_small"]),
    (LOCAL, "local.inputs", ["other_sector", "all"]),
    (LOCAL, "local.hidden", [4, 8]),
    (LOCAL, "local.depth", [1, 2, 3]),
    (LOCAL, "local.space", [0, 1, 2]),
    (LOCAL, "local.time", [0, 1, 2]),
    (LOCAL, "head", ["linear", "mlp_small"]),
]


def with_setting(base: dict[str, Any], path: str, value: Any) -> PredecoderDSL:
    config = {key: dict(part) if isinstance(part, dict) else part for key, part in base.items()}
    *outer, last = path.split(".")
    target = config
    for key in outer:
        target = target[key]
    target[last] = value
    return parse_dsl(config)


def response(dsl: PredecoderDSL) -> torch.Tensor:
    """Return the output of the network after fixed noise was added to its zero-initialized layers."""
    prob = problem(3)
    model = compile_predecoder(dsl, prob, seed=3)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    shots = (torch.rand(16, prob.n_detectors, generator=torch.Generator().manual_seed(1)) < 0.2).float()
    return torch.cat([model(shots).detach(), model.eval()(shots).detach()])


@pytest.mark.parametrize(("base", "path", "values"), SETTINGS, ids=[f"{b['type']}-{p}" for b, p, _ in SETTINGS])
def test_every_option_of_every_setting_changes_the_function(base: dict[str, Any], path: str, values: list[Any]) -> None:
    outputs = [response(with_setting(base, path, value)) for value in values]
    for i, one in enumerate(outputs):
        for other in outputs[i + 1 :]:
            assert not torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("config", ALL)
def test_untrained_output_is_the_prior(config: dict[str, Any]) -> None:
    prob = problem(3)
    model = compile_predecoder(parse_dsl(config), prob, seed=0)
    out = model.eval()(torch.ones(5, prob.n_detectors))
    assert torch.equal(out, ProblemView.of(prob).log_odds.expand(5, -1))


@pytest.mark.parametrize("config", ALL)
def test_hard_flip_output_has_one_value_per_mechanism(config: dict[str, Any]) -> None:
    prob = problem(3)
    model = compile_predecoder(parse_dsl({**config, "output_mode": "hard_flip"}), prob, seed=0)
    out = model(torch.ones(5, prob.n_detectors))
    assert out.shape == (5, prob.n_mechanisms) and (out < 0).all()


@pytest.mark.parametrize("config", ALL)
def test_initial_weights_depend_only_on_the_seed(config: dict[str, Any]) -> None:
    prob = problem(3)
    state = torch.random.get_rng_state()
    first = compile_predecoder(parse_dsl(config), prob, seed=1).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    again = compile_predecoder(parse_dsl(config), prob, seed=1).state_dict()
    other = compile_predecoder(parse_dsl(config), prob, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    if config["type"] != "neural_bp":  # which starts as belief propagation for every seed
        assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("config", ALL)
def test_shots_of_a_batch_are_independent(config: dict[str, Any]) -> None:
    prob = problem(3)
    model = compile_predecoder(parse_dsl(config), prob, seed=1).eval()
    for parameter in model.parameters():
        parameter.data += 0.1
    shots = (torch.rand(32, prob.n_detectors) < 0.2).float()
    alone = torch.cat([model(shot[None]) for shot in shots])
    assert torch.allclose(model(shots), alone, atol=1e-4)


def test_out_of_sector_network_ignores_its_own_sector() -> None:
    prob = problem(3)
    model = compile_predecoder(parse_dsl(MLP), prob, seed=1)
    for parameter in model.parameters():
        parameter.data += 0.1
    shots = torch.zeros(1, prob.n_detectors)
    flipped = shots.clone()
    flipped[0, prob.graph.in_sector] = 1
    assert torch.equal(model(shots), model(flipped))
    flipped[0, prob.graph.out_of_sector[0]] = 1
    assert not torch.equal(model(shots), model(flipped))


def test_missing_second_sector_has_a_hint() -> None:
    with pytest.raises(ValueError, match="inputs: all"):
        compile_predecoder(parse_dsl(MLP), Problem.from_env(repetition()), seed=0)


def test_cost_is_counted_with_one_thread_and_the_others_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    prob, before, used = problem(3), torch.get_num_threads(), list[int]()
    model, shot_flops = compile_predecoder(parse_dsl(MLP), prob, seed=0), flops._shot_flops

    def noting(*given: Any) -> int:
        used.append(torch.get_num_threads())
        return shot_flops(*given)

    monkeypatch.setattr(flops, "_shot_flops", noting)
    torch.set_num_threads(2)
    try:
        flops.count(model, prob.n_detectors)
        assert used == [1, 1, 1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_cost_equals_a_hand_count() -> None:
    prob = problem(3)
    n_in, n_out = len(prob.graph.out_of_sector), prob.graph.n_edges
    cost = flops.count(compile_predecoder(parse_dsl(MLP), prob, seed=0), prob.n_detectors)
    matrices = n_in * 16 + 16 * 16 + 16 * n_out + n_in * n_out
    assert cost.n_params == matrices + 16 + 16 + n_out + 32  # biases, and the circuit's fingerprint
    elementwise = 16 + 16 + n_out + 2 * 16 + 16 + n_out + n_out  # biases, relu, residual, skip, prior
    assert cost.flops_per_syndrome == 2 * matrices + elementwise


@pytest.mark.parametrize("product", [torch.mm, torch.bmm, torch.addmm])
def test_matrix_products_are_counted_as_by_torch(product: Any) -> None:
    shapes = {"mm": [(3, 5), (5, 7)], "bmm": [(2, 3, 5), (2, 5, 7)], "addmm": [(7,), (3, 5), (5, 7)]}[product.__name__]
    factors = [torch.ones(shape) for shape in shapes]
    with FlopCounterMode(display=False) as expected:
        product(*factors)
    with torch.no_grad(), flops._FlopCounter() as counter:
        product(*factors)
    assert counter.total == expected.get_total_flops() + 3 * 7 * (product is torch.addmm)  # the bias


@pytest.mark.parametrize("config", [MLP, GNN])
def test_network_for_its_cost_has_the_cost_of_the_compiled_one(config: dict[str, Any]) -> None:
    prob, dsl = problem(3), parse_dsl(config)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = compile_for_cost(dsl, ProblemView.of(prob, dsl.output_mode))
    assert torch.equal(torch.rand(3), expected), "torch's random state is as before"
    costs = [flops.count(network, prob.n_detectors) for network in (model, compile_predecoder(dsl, prob, seed=0))]
    assert costs[0] == costs[1]


def test_scatter_operations_are_counted() -> None:
    prob = problem(3)
    small = flops.count(compile_predecoder(parse_dsl({**GNN, "gnn": {"hidden": 6, "layers": 1}}), prob, seed=0), 24)
    large = flops.count(compile_predecoder(parse_dsl(GNN), prob, seed=0), 24)
    assert large.flops_per_syndrome > 2 * small.flops_per_syndrome


WIDTH, LENGTH = 8, 24


class OfTorch(torch.nn.Module):
    """Applies a layer of torch, with every detector as a token of WIDTH features."""

    def __init__(self, layer: torch.nn.Module, n_edges: int) -> None:
        super().__init__()
        self.layer, self.n_edges = layer, n_edges

    def forward(self, detections: torch.Tensor) -> torch.Tensor:
        out = self.layer(detections[..., None].expand(-1, -1, WIDTH))
        tokens = out[0] if isinstance(out, tuple) else out
        return tokens.sum((1, 2))[:, None].expand(-1, self.n_edges)


class Attention(torch.nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = tokens.contiguous().unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


class InInferenceMode(torch.nn.Module):
    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.layers(tokens)  # type: ignore[no-any-return]


class ByItsOwnKernel(Attention):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return super().forward(tokens)


ATTENDING = 2 * LENGTH * LENGTH * WIDTH  # of queries with keys, and of weights with values


@pytest.mark.parametrize(
    ("layer", "products"),
    [
        (Attention(), ATTENDING),
        (ByItsOwnKernel(), ATTENDING),
        (InInferenceMode(torch.nn.Linear(WIDTH, 32), torch.nn.Linear(32, WIDTH)), LENGTH * 2 * WIDTH * 32),
        (InInferenceMode(Attention()), ATTENDING),
        (torch.nn.LSTM(WIDTH, WIDTH, batch_first=True), LENGTH * 8 * WIDTH * WIDTH),
        (
            torch.nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=32, batch_first=True),
            ATTENDING + LENGTH * (4 * WIDTH * WIDTH + 2 * WIDTH * 32),
        ),
    ],
    ids=["attention", "own kernel", "inference", "attention in inference", "lstm", "transformer"],
)
def test_fused_operations_are_counted_as_their_parts(layer: torch.nn.Module, products: int) -> None:
    view = ProblemView.of(problem(3))
    assert view.n_detectors == LENGTH
    cost = flops.count(Predecoder(OfTorch(layer, view.n_edges), view, "soft_priors"), LENGTH)
    assert 2 * products < cost.flops_per_syndrome < 4 * products
    assert torch.backends.mha.get_fastpath_enabled(), "as it was"


def test_counting_does_not_load_the_compiler() -> None:
    """Loading it takes more than a second in every process that verifies."""
    script = """
import sys
from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import flops
from autoqec.decoders.dsl_compiler import compile_predecoder
from tests.unit.decoders.test_decoders import MLP, problem
assert flops.count(compile_predecoder(parse_dsl(MLP), problem(3), seed=0), 24).flops_per_syndrome > 0
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0


def test_function_that_only_views_its_parameters_is_counted() -> None:
    class Bias(torch.nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(n))

        def forward(self, detections: torch.Tensor) -> torch.Tensor:
            return self.bias.expand(len(detections), -1)

    view = ProblemView.of(problem(3))
    cost = flops.count(Predecoder(Bias(view.n_edges), view, "soft_priors"), view.n_detectors)
    assert cost == flops.ModelCost(n_params=view.n_edges + 32, flops_per_syndrome=view.n_edges)  # prior + shift


@pytest.mark.parametrize("config", ALL)
def test_checkpoint_round_trip(tmp_path: Path, config: dict[str, Any]) -> None:
    prob = problem(3)
    model = compile_predecoder(parse_dsl(config), prob, seed=1).eval()
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, model, parse_dsl(config), config)
    payload = checkpoint.read(path)
    assert set(payload) == {"class_name", "state_dict", "output_mode", "dsl_config"}
    assert payload["dsl_config"] == config
    again, dsl = checkpoint.load(path, prob)
    shots = (torch.rand(8, prob.n_detectors) < 0.2).float()
    assert dsl == parse_dsl(config) and torch.equal(model(shots), again(shots))


def saved(tmp_path: Path, **change: Any) -> Path:
    prob = problem(3)
    model = compile_predecoder(parse_dsl(MLP), prob, seed=1)
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, model, parse_dsl(MLP))
    payload = torch.load(path, weights_only=True)
    payload.update(change)
    torch.save(payload, path)
    return path


def test_checkpoint_of_another_circuit_names_both(tmp_path: Path) -> None:
    other = problem(3, 0.01, "x")
    with pytest.raises(ContractError, match=other.circuit_sha256[:12]) as caught:
        checkpoint.load(saved(tmp_path), other)
    assert problem(3).circuit_sha256[:12] in str(caught.value)


def test_checkpoint_of_another_shape_names_both(tmp_path: Path) -> None:
    path = saved(tmp_path, dsl_config=parse_dsl({"type": "mlp", "mlp": {"hidden": 8}}).config())
    with pytest.raises(ContractError, match=r"is \(16, 8\) in the checkpoint and \(8, 8\)"):
        checkpoint.load(path, problem(3))


def test_missing_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="missing"):
        checkpoint.read(tmp_path / "none.pt")
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ContractError, match="read safely"):
        checkpoint.read(path)
    with pytest.raises(ContractError, match="exactly"):
        checkpoint.read(saved(tmp_path, extra=1))


def test_non_finite_values_and_unusual_tensors_are_refused(tmp_path: Path) -> None:
    state = torch.load(saved(tmp_path), weights_only=True)["state_dict"]
    bad = {**state, "body.first.bias": torch.full((16,), float("nan"))}
    with pytest.raises(ContractError, match="not finite"):
        checkpoint.read(saved(tmp_path, state_dict=bad))
    huge = {**state, "body.first.bias": torch.zeros(1).expand(10**12)}
    with pytest.raises(ContractError, match="plain dense"):
        checkpoint.read(saved(tmp_path, state_dict=huge))


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('code ran')",))


def test_pickled_code_never_runs(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"class_name": Evil()}, path)
    with pytest.raises(ContractError, match="safely"):
        checkpoint.read(path)


def test_predecoder_yaml_of_the_editable_modules_is_valid() -> None:
    text = (Path(own_surface.__file__).parent / "predecoder.yaml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    assert parse_dsl(config).config() == config  # every default is written out


def test_overlaid_modules_replace_those_of_the_package(tmp_path: Path) -> None:
    tree = tmp_path / "modules"
    shutil.copytree(Path(own_surface.__file__).parent, tree, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "mlp.py").write_text("def build(block, head, view):\n    raise ValueError('branch speaking')\n")
    code = (
        "import sys\nfrom autoqec.decoders import overlay\noverlay.use_modules_dir(sys.argv[1])\n"
        "print(overlay.architecture_module('mlp').__file__)\noverlay.use_modules_dir(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tree)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tree / "mlp.py")


def test_late_or_missing_overlay_is_an_error(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autoqec.decoders import overlay\n"
        "overlay.architecture_module('mlp')\noverlay.use_modules_dir(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode != 0 and "already loaded" in done.stderr


def test_every_setting_of_every_type_is_tested() -> None:
    tried = {path for _, path, _ in SETTINGS}
    for family in FAMILIES:
        config_class = PredecoderDSL.model_fields[family].annotation
        block = next(part for part in get_args(config_class) if part is not type(None))
        assert {f"{family}.{name}" for name in block.model_fields} <= tried


def test_neural_bp_of_one_check_equals_the_exact_posterior() -> None:
    """One check over three mechanisms: the posterior of each is known in closed form."""
    prior = torch.tensor([0.1, 0.2, 0.3])
    llr = torch.log((1 - prior) / prior)[None]
    message = check_messages(llr, torch.tensor([[-1.0]]), torch.zeros(3, dtype=torch.long))
    odd = {}
    for bits in range(8):
        flips = [bits >> k & 1 for k in range(3)]
        if sum(flips) % 2 == 1:
            odd[bits] = float(torch.prod(torch.where(torch.tensor(flips) == 1, prior, 1 - prior)))
    for k in range(3):
        flipped = sum(weight for bits, weight in odd.items() if bits >> k & 1)
        unflipped = sum(weight for bits, weight in odd.items() if not bits >> k & 1)
        assert float(llr[0, k] + message[0, k]) == pytest.approx(math.log(unflipped / flipped), abs=1e-4)


def test_xor_log_odds_equal_hand_computed_values() -> None:
    log_odds = torch.tensor([[math.log(0.1 / 0.9), math.log(0.7 / 0.3)]])
    both = xor_log_odds(log_odds, torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    p = 0.1 * 0.3 + 0.9 * 0.7
    assert float(both[0, 0]) == pytest.approx(math.log(p / (1 - p)), abs=1e-5)


def test_conv_without_coordinates_has_a_hint() -> None:
    with pytest.raises(ValueError, match="use `mlp` or `gnn`"):
        lattice(torch.zeros(5, 0))
