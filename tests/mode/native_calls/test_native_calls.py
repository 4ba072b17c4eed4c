"""The player in C++: bits and rows are those of Python's way, whatever a program calls."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from models import MODELS, Make

from detmode.verify.cases import call, tensors_of
from tests.mode.native_calls.ways import added, assert_same, data, in_turn, rows
from tests.mode.planned import by_launchers
from tests.models.steps import TRAININGS
from tests.models.test_models import train
from tests.shared import selection
from tests.shared.compiled_functions import FUNCTIONS
from tests.shared.programs import in_another_thread

CASES = selection.todays_forms(
    # The others have no kernel on the CPU.
    case
    for case in selection.cases()
    if "cudnn_" not in case.sample.op
)


@in_turn("group", selection.grouped(CASES))
def test_samples(group, ways):
    """Bits and rows of every sample, on data that the plan has not seen, and other schedules."""

    def check(case):
        def program():
            arguments = (case.sample.arguments(case.dtype, "cpu", seed) for seed in (0, 1, 7))
            return [tensors_of(call(case.sample, each)) for each in arguments]

        ways.same(program, schedule_seed=3)

    selection.check_each(group, check)


@in_turn("name", selection.todays_forms(FUNCTIONS))
@pytest.mark.filterwarnings("ignore")  # each call of the table warns somewhere
def test_functions_of_users(name, ways):
    """Forward and backward: bits, rows with the lines of the forwards, and native rows."""
    function, make = FUNCTIONS[name]

    def program():
        arguments = make()
        bits = []
        for _ in range(4):
            leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]
            result = function(*leaves)
            bits.append(result.detach())
            if result.requires_grad:
                result.backward(torch.ones_like(result))
                bits += [leaf.grad for leaf in leaves]
        return bits

    ways.same(program, warn_only=True)
    ways.as_with_a_dispatch_mode(program)


@pytest.mark.usefixtures("cublas_workspace")
@in_turn("name", selection.todays_forms(TRAININGS))
def test_trainings_of_models(name, ways):
    """Losses, weights and rows of whole models, over several steps."""
    ways.same(lambda: train(name, steps=4))
    assert ways.replayed


@pytest.mark.usefixtures("cublas_workspace")
@in_turn("model", selection.todays_forms(product(MODELS, (False, True))))
@pytest.mark.filterwarnings("ignore")  # some calls of models vary
def test_models_as_with_a_dispatch_mode(model, ways):
    """Row for row, count for count, native rows too, which Python makes with ``warn_only``."""
    name, warn_only = model

    def program():
        training = MODELS[name](Make(torch.device("cpu"), tiny=True))
        for _ in range(4):
            training.loss().backward()

    by_player = ways.as_with_a_dispatch_mode(program, warn_only=warn_only)
    assert "left to PyTorch's flag" not in by_player.report().verdict


class Block(torch.nn.Module):
    """Pads, enlarges and adds at indices."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 1, 4, 4))
        self.register_buffer("index", torch.tensor([0, 1, 1]))

    def forward(self, x):
        x = F.pad(x * self.weight, [1, 1, 1, 1], mode="replicate")
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        return x.index_add(2, self.index, x[:, :, :3])[:, :, :4, :4]


def trained():
    model = torch.nn.Sequential(Block(), torch.nn.Sequential(Block(), Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_a_training(ways):
    """Weights, lines, modules and counts, as launchers give them; in backward, of the forward."""
    by_player = ways.same(trained)
    assert ways.replayed > 20
    assert {"Sequential.0", "Sequential.1.1"} <= {name for row in by_player for name in row[2]}
    with by_launchers(), ways.block(0) as mode:
        expected = trained()
    assert rows(mode) == by_player
    with ways.by_player():
        assert_same(trained(), expected)


def test_another_thread_has_its_own_notes(ways):
    """The backward of a thread's forward calls has their lines; numbers of nodes repeat there."""
    ways.same(lambda: in_another_thread(trained))


class Leaf(torch.nn.Module):
    """Adds at indices."""

    def forward(self, *arguments):
        return added(*arguments)


class Branch(Leaf):
    """Adds at indices, and has a leaf do it as well."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Leaf(), Leaf()

    def forward(self, leaf, *arguments):
        return super().forward(*arguments) + leaf(*arguments)


class Root(torch.nn.Module):
    """Has a branch."""

    def __init__(self):
        super().__init__()
        self.branch = Branch()

    def forward(self, *arguments):
        return self.branch(*arguments)


def test_a_module_that_gets_another_path(ways):
    """One that was first called alone is shown where the model has it, once that is known."""

    def program():
        root = Root()
        branch = root.branch
        for called, leaf in ((branch, branch.left), (root, branch.left), (root, branch.right)):
            for _ in range(4):
                called(leaf, *data())

    by_player = ways.same(program)
    assert ways.replayed > 8
    assert {"Branch", "Root.branch"} <= {name for row in by_player for name in row[2]}


def test_the_order_of_the_calls(ways):
    """The report's course has the calls in order, those of the player among Python's."""
    x, index, source = data()
    courses = []
    for number in (0, 1):
        with ways.block(number) as mode:
            for _ in range(6):
                added(x, index, source)
                torch.ones(6).scatter_reduce(0, index, source[:, 0], "prod")
                index.bincount(source[:, 0])  # has no plan
        courses.append(mode.report().course)
    assert ways.replayed > 3
    assert courses[0] == courses[1]
