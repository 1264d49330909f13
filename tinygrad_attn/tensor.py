"""`Tensor`: an array, its gradient, and how it was made.

Operations are not written here.  Each attaches itself, as a method, as an operator and under NumPy's own
name, where it is declared (`tinygrad_attn.ops`); NumPy's protocols, NEP 13 and NEP 18, lead from
``np.exp(t)`` to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .autograd import NUMPY, Array, Lock, Node, constant, deposit, differentiate, owner_of
from .modes import is_grad_enabled

# What NumPy may compute from the bare arrays: nothing here has a gradient.
_WITHOUT_GRADIENT = """
argmin argsort sign signbit floor ceil round around isfinite isnan isinf allclose isclose array_equal any all
count_nonzero shape ndim size zeros_like ones_like empty_like full_like result_type logical_and logical_or logical_not
bitwise_and bitwise_or bitwise_xor invert array_repr array_str array2string may_share_memory shares_memory
""".split()
_PLAIN = {getattr(np, name) for name in _WITHOUT_GRADIENT}


class Tensor(Node, NDArrayOperatorsMixin):
    """An array that can remember how it was made, so that `backward` can find its gradient.

    Args:
        data: numbers, nested lists of them, or an array, which is copied.  Python floats become float32;
            arrays and NumPy scalars keep their dtype.
        requires_grad: whether ``.grad`` is wanted; only floats can have one.
        dtype: another dtype than the data's own.
        name: shown in pictures, listings and errors.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([[1.0, 2.0]], requires_grad=True, name="x")
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([[2., 4.]])
    """

    __slots__ = ()

    def __init__(self, data: Any, *, requires_grad: bool = False, dtype: Any = None, name: str | None = None) -> None:
        constant(_as_array(data, dtype), self)
        self.name = name
        self.requires_grad = requires_grad

    # ------------------------------------------------------------------------------------ data and gradient

    def _set_requires_grad(self, wanted: bool) -> None:
        if wanted and self._data.dtype.kind != "f":
            raise TypeError(f"only floats can require gradients, not {self._data.dtype}: pass dtype=np.float32")
        if self.op is not None and not wanted:
            raise RuntimeError("an operation's result cannot stop requiring gradients: use .detach()")
        self._requires_grad = bool(wanted)

    def _set_data(self, data: Any) -> None:
        array = data._data if isinstance(data, Tensor) else np.asarray(data)
        if self._requires_grad and array.dtype.kind != "f":
            raise TypeError(f"the data of a tensor that requires gradients must be float, not {array.dtype}")
        if array.shape != self._data.shape:
            raise ValueError(f"the data of a tensor of shape {self.shape} cannot become one of shape {array.shape}")
        if self.op is not None and array is not self._data:
            raise RuntimeError("the data of an operation's result cannot be replaced: compute it anew")
        if array is not self._data and not self._data.flags.writeable and id(owner_of(self._data)) in Lock.alive:
            raise RuntimeError(
                f"the data of {self.name or 'this tensor'} is still needed by a graph: run backward() on it"
                " first, or drop the values that were computed from it"
            )
        self._data = array

    def _set_grad(self, grad: Any) -> None:
        if grad is not None and not isinstance(grad, Tensor):
            grad = Tensor(grad, dtype=self.dtype)
        if grad is not None and grad.shape != self.shape:
            raise ValueError(f"a gradient of shape {grad.shape} does not fit a tensor of shape {self.shape}")
        self._grad = grad

    requires_grad = property(attrgetter("_requires_grad"), _set_requires_grad, doc="Whether gradients flow here.")
    is_leaf = property(lambda self: self.op is None, doc="Whether no operation made this value.")
    data = property(attrgetter("_data"), _set_data, doc="The array; read-only while a graph needs it.")
    grad = property(attrgetter("_grad"), _set_grad, doc="The gradient, a Tensor; None before any backward pass.")
    shape = property(attrgetter("_data.shape"), doc="The length of each axis.")
    dtype = property(attrgetter("_data.dtype"), doc="The NumPy dtype.")
    ndim = property(attrgetter("_data.ndim"), doc="The number of axes.")
    size = property(attrgetter("_data.size"), doc="The number of elements.")

    def numpy(self) -> Any:
        """The array itself, not a copy; read-only while a graph needs it."""
        return self._data

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self._data.size != 1:
            raise ValueError(f"item: a tensor of shape {self.shape} is not one number")
        return self._data.item()

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self._data.tolist()

    def detach(self) -> Tensor:
        """The same array, cut off from the graph."""
        return constant(self._data).named(self.name)  # type: ignore[no-any-return]

    def copy(self) -> Tensor:
        """A copy of the array, cut off from the graph."""
        return Tensor(self._data, name=self.name)

    def named(self, name: str) -> Tensor:
        """Give this value a name for pictures, listings and errors, and return it."""
        self.name = name
        return self

    def backward(self, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Add the gradient of this value to the ``.grad`` of every leaf it was made from.

        Args:
            gradient: the seed, of exactly this shape; may be left out for a single number, where it is 1.
            retain_graph: keep the graph for another pass, not free it (default: as ``create_graph``).
            create_graph: record the backward pass, so that ``.grad`` can be differentiated again.  A second
                ``backward`` then adds to the same ``.grad``; `tinygrad_attn.grad` leaves them alone.

        Raises:
            RuntimeError: nothing here requires gradients, or the graph was freed by an earlier pass.
            ValueError: the seed is missing or has another shape.  No ``.grad`` has changed then.
        """
        deposit(differentiate([self], [gradient], None, create_graph, retain_graph), create_graph)

    def retain_grad(self) -> None:
        """Keep ``.grad`` for this value too, although an operation made it."""
        if not self._requires_grad:
            raise RuntimeError("retain_grad: this value does not require gradients")
        self._retains_grad = True

    def zero_grad(self) -> None:
        """Forget the gradient: ``.grad`` is None again."""
        self._grad = None

    # ------------------------------------------------------------------------------------------- as a number

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self._data.dtype.kind not in "iu" or self._data.ndim:
            raise TypeError(f"only a 0-d integer tensor is an index, not {self.dtype} of shape {self.shape}")
        return int(self._data)

    def __bool__(self) -> bool:
        if not self._data.size:  # old NumPys say False with a warning
            raise ValueError(f"the truth value of an empty tensor of shape {self.shape} is ambiguous: ask for .size")
        return bool(self._data)

    def __format__(self, spec: str) -> str:
        return format(self._data.item() if self._data.size == 1 else self._data, spec)

    def __pos__(self) -> Tensor:
        return self

    # ----------------------------------------------------------------------------------------- as a sequence

    def __len__(self) -> int:
        if not self._data.ndim:
            raise TypeError("len() of a 0-d tensor")
        return len(self._data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "a tensor cannot be written into, its graph would be wrong: use where() or masked_fill() for a"
            " new one, or write into .data when no graph needs it"
        )

    __hash__ = object.__hash__  # == compares elementwise, but two tensors are never the same key

    # ------------------------------------------------------------------------------------------------ copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the array, its name and, for a leaf, its gradient; never the graph."""
        leaf = self.op is None
        gradient = self._grad._data if leaf and self._grad is not None else None
        return _rebuild, (type(self), self._data, leaf and self._requires_grad, self.name, gradient)

    def __repr__(self) -> str:
        text = np.array2string(self._data, separator=", ", prefix="Tensor(")
        extras = [f"dtype={self.dtype}"] if self.dtype not in (np.float32, np.int64, np.bool_) else []
        extras += [f"name={self.name!r}"] if self.name else []
        extras += [f"op={self.op.name}"] if self.op else ["requires_grad=True"] if self._requires_grad else []
        return f"Tensor({', '.join([text, *extras])})"

    # ------------------------------------------------------------------------------------- NumPy's protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._data, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc is np.add:
            return NUMPY[np.sum](*inputs, **kwargs)
        if method != "__call__":
            return NotImplemented
        if out is not None:  # an array is written: x -= lr * gradient
            tracked = any(isinstance(a, Node) and a._requires_grad for a in inputs)
            if any(isinstance(a, Node) for a in out) or (tracked and is_grad_enabled()):
                raise TypeError(f"{ufunc.__name__}: out= would lose the graph; detach() the tensors first")
            return ufunc(*(a._data if isinstance(a, Node) else a for a in inputs), out=out, **kwargs)
        return _dispatch(ufunc, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _dispatch(func, args, kwargs)

    if TYPE_CHECKING:  # so are methods

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Tensor: ...


Node.result_type = Tensor


def _dispatch(function: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's function on Tensors: ours of the same name, or NumPy's own where no gradient exists."""
    if function in NUMPY:
        return NUMPY[function](*args, **kwargs)
    if function in _PLAIN:
        return function(*map(_bare, args), **{k: _bare(v) for k, v in kwargs.items()})
    raise TypeError(
        f"np.{function.__name__} has no gradient rule here; it works on .numpy(), which cuts the graph, or"
        " can be declared as an operation (see tinygrad_attn.ops)"
    )


def _bare(value: Any) -> Any:
    return value._data if isinstance(value, Node) else value


def _rebuild(kind: type[Tensor], data: Array, requires_grad: bool, name: str | None, gradient: Array) -> Tensor:
    tensor = kind.__new__(kind)
    Tensor.__init__(tensor, data, requires_grad=requires_grad, name=name)
    tensor.grad = gradient
    return tensor


def _as_array(data: Any, dtype: Any) -> Array:
    """A fresh, plain, numeric array; Python floats are float32."""
    if isinstance(data, Node):
        data = data._data
    elif isinstance(data, (list, tuple)) and _holds_tracked(data):
        raise TypeError(
            "Tensor() of tensors that require gradients would cut their graph: use stack() or concatenate()"
        )
    array = np.array(data, dtype=dtype, subok=False)
    if dtype is None and array.dtype == np.float64 and _is_python(data):
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise TypeError(f"a tensor holds floats, integers or booleans, not {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _holds_tracked(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_holds_tracked, data))
    return isinstance(data, Node) and data._requires_grad


def _is_python(data: Any) -> bool:
    """Whether the numbers are Python's own, which have no dtype to keep."""
    while isinstance(data, (list, tuple)):
        data = data[0] if data else 0.0
    return not isinstance(data, (np.ndarray, np.generic, Node)) and not hasattr(data, "__array__")
