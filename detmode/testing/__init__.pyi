from .order_independent import assert_order_independent as assert_order_independent
from .reproducible import VARIED as VARIED
from .reproducible import assert_reproducible as assert_reproducible
