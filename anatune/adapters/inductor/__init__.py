"""TorchInductor: ``max-autotune`` generates and measures only the best predicted Triton kernels of matrix products.

- ``torch._inductor.config.inductor_choices_class = inductor_choices(keep=4)`` selects before code is generated (PyTorch
  2.13 and later).
- `choice_pruner` selects before code is compiled (PyTorch 2.8 and later).
- `lookup_table` fixes the choice in advance, so that nothing is measured.

These functions need no GPU until a product is compiled.
"""

from anatune.adapters.inductor.choices import choice_pruner, inductor_choices, lookup_table

__all__ = ["choice_pruner", "inductor_choices", "lookup_table"]
