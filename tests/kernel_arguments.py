"""Arguments of a kernel that multiplies matrices, without torch: what the Triton adapter looks at."""

import math


class Tensor:
    """What the adapter looks at in a torch.Tensor."""

    def __init__(self, shape, dtype="torch.float16", transposed=False, steps=None):
        self.shape, self.dtype, self.transposed, self.steps = shape, dtype, transposed, steps

    def stride(self):
        if self.steps or len(self.shape) != 2:
            return self.steps or tuple(math.prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        return (1, self.shape[0]) if self.transposed else (self.shape[1], 1)

    def element_size(self):
        return 4 if "32" in self.dtype else 1 if "8" in self.dtype else 2


def arguments(m=4096, n=4096, k=4096, **tensor):
    """Return the arguments of one call, by name."""
    tensors = {
        name: Tensor(shape, **tensor) for name, shape in (("a_ptr", (m, k)), ("b_ptr", (k, n)), ("c_ptr", (m, n)))
    }
    return tensors | {"M": m, "N": n, "K": k}


class Descriptor:
    """What the adapter looks at in Triton's TensorDescriptor."""

    def __init__(self, shape, dtype="torch.float16", block_shape=(1, 1)):
        self.base, self.shape, self.strides, self.block_shape = (
            Tensor(shape, dtype),
            list(shape),
            [shape[1], 1],
            block_shape,
        )


def expert_arguments(
    tokens=512, experts=64, top_k=4, n=512, k=1024, dtype="torch.bfloat16", weights=None, group_k=0, *,
    down=False, packed=False,
):  # fmt: skip
    """Return the arguments of one call of a kernel of experts, named as vLLM's are; `down`: of the second product."""
    rows = tokens * top_k
    kind = "torch.uint8" if packed else weights or dtype
    return {
        "a_ptr": Tensor((rows if down else tokens, k), dtype),
        "b_ptr": Tensor((experts, n, k // 2 if packed else k), kind),
        "c_ptr": Tensor((tokens, top_k, n), "torch.bfloat16"),
        "sorted_token_ids_ptr": Tensor((rows + experts * 15,), "torch.int32"),
        "expert_ids_ptr": Tensor((rows // 16 + experts,), "torch.int32"),
        "num_tokens_post_padded_ptr": Tensor((1,), "torch.int32"),
        "N": n,
        "K": k,
        "EM": rows + experts * 15,
        "num_valid_tokens": rows,
        "top_k": 1 if down else top_k,
        "group_k": group_k,
    }
