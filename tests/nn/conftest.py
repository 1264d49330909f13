import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.nn import Parameter


def gradcheck_layer(layer, x, order=2):
    """Finite differences for the input and every parameter of a layer, and for their gradients."""
    layer.to(np.float64)
    places = [
        (module, name)
        for _, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Parameter)
    ]

    def f(x, *values):
        for (module, name), value in zip(places, values):
            object.__setattr__(module, name, value)
        return layer(x)

    values = [getattr(module, name) for module, name in places]
    return ta.gradcheck(f, [ta.Tensor(x, requires_grad=True), *values], order=order)


@pytest.fixture(name="gradcheck_layer")
def _gradcheck_layer():
    return gradcheck_layer
