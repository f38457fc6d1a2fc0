"""TorchInductor: ``max-autotune`` generates and measures only the Triton kernels of products that deserve it.

``torch._inductor.config.inductor_choices_class = inductor_choices(keep=4)`` decides before code is generated (PyTorch
2.13 on), `choice_pruner` before it is compiled (2.8 on), and `lookup_table` writes down what to take, so that nothing
is measured at all. None of them needs a GPU before a product is compiled.
"""

from anatune.adapters.inductor.choices import choice_pruner, inductor_choices, lookup_table

__all__ = ["choice_pruner", "inductor_choices", "lookup_table"]
