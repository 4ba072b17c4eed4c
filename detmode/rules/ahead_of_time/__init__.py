"""Programs compiled ahead of time: packages of AOTInductor, and ``torch.compile(...).aot_compile``.

Before each run of one inside a mode, ``detmode::ahead_of_time_program`` is called with its tensors.

## What varies

The code was made without the rule table, and perhaps without PyTorch's flag: what it fuses may add
by atomics, and an operator that it decomposes is called by no name that a table has.

## What happens instead

detmode warns in its own words, once for each line that runs a program. The ATen operators that the
program still calls meet the table as well.

## Cost

None.

## Limits

There is no substitute: run the function by ``torch.compile`` or ``torch.export`` inside the mode,
or allow the program. A program that is run by C++ alone is not seen.
"""

from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.markers import AHEAD_OF_TIME_PROGRAM
from detmode.table.rule import Refuse

RULES = chain(
    AHEAD_OF_TIME_PROGRAM,
    when=on("cuda"),
    action=Refuse(),
    because="it was compiled without the rule table, and may add by atomics",
    otherwise="such programs add by atomics on CUDA only",
)
