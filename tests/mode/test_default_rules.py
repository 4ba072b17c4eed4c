"""The mode over the rules that come with detmode."""

import torch

import detmode
from detmode import DeterministicMode


def loaded():
    """All overloads of ATen."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            getattr(torch.ops.aten, name.removeprefix("aten::").partition(".")[0])
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
    return [
        getattr(packet, overload)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for overload in packet.overloads()
    ]


def test_each_listed_overload_is_known():
    """Every overload with a row that acts, variants included, can be looked up and named."""
    table = detmode.default_rules()
    mode = DeterministicMode()
    listed = [
        func
        for func in loaded()
        if any(not isinstance(row.rule.action, detmode.Allow) for row in table.get(func))
    ]
    assert len(listed) > 50
    for func in listed:
        overload = mode._look_up(func)
        assert overload.name in overload.names
        assert overload.signature.names == tuple(a.name for a in func._schema.arguments)


def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(2, 1, 3)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(1, 1, 6, 6)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_a_program_that_does_not_vary_is_not_disturbed():
    """A small network on the CPU trains to the same weights under the mode, without a word."""
    with DeterministicMode() as mode:
        weights = train()
    assert torch.equal(weights, train())
    assert all(record.action == "native" for record in mode.records)
