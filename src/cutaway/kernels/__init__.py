"""Operations on tensors, one folder each: a plain PyTorch twin, and faster forms beside it.

They know shapes and numbers only: no models, no cache bookkeeping, no requests.
"""
