"""Recurrent networks by cuDNN: ``_cudnn_rnn`` and its backward.

``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` run them on CUDA. The cells (``nn.LSTMCell``) are made of
``addmm`` and elementwise operators.

## What varies

PyTorch's documentation says that on some versions of cuDNN and CUDA the results vary, and names
the remedy: a cuBLAS workspace for each stream. PyTorch gives no alert.

## What happens instead

With ``CUBLAS_WORKSPACE_CONFIG`` set to ``:16:8``, ``:4096:2`` or ``:4096:8`` the call is made
unchanged; ``detmode run`` sets it. Otherwise detmode warns in its own words.

## Cost

The workspaces: 128 KiB, 8 MiB or 32 MiB for each stream.

## Limits

Dropout between layers draws from cuDNN's own state, which is seeded from PyTorch's generator once.
Which versions of cuDNN vary is not documented.
"""

from detmode.table.chain import chain
from detmode.table.conditions import cublas_workspace_unset, on
from detmode.table.rule import Refuse

_OPS = ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward")

RULES = chain(
    _OPS,
    when=on("cuda") & cublas_workspace_unset(":16:8", ":4096:2", ":4096:8"),
    action=Refuse(),
    because="cuDNN's streams may share a cuBLAS workspace; "
    "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before CUDA starts",
    otherwise="with a cuBLAS workspace for each stream cuDNN is documented not to vary",
)

STANDS_FOR = {"torch.nn.modules.rnn.RNNBase": _OPS}
