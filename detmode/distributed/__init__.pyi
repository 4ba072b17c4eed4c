from .microbatches import MicrobatchReducer as MicrobatchReducer
