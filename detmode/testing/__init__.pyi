from .reproducible import VARIED as VARIED
from .reproducible import assert_reproducible as assert_reproducible
