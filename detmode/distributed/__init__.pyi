from .fixed_buckets import fix_buckets as fix_buckets
from .microbatches import MicrobatchReducer as MicrobatchReducer
