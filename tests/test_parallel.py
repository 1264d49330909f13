"""Processes that share the batches: the gradients of one process, and no process that outlives its use."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.optim import accumulate
from tinygrad_attn.parallel import Workers


def gpt():
    config = ta.nn.GPTConfig(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=16)
    return ta.nn.GPT(config, rng=np.random.default_rng(0))


def batches(n):
    tokens = np.random.default_rng(1).integers(0, 11, (n, 2, 9))
    return [(batch[:, :-1], batch[:, 1:]) for batch in tokens]


def gradients(model):
    return [p.grad.numpy().copy() for p in model.parameters()]


@pytest.fixture
def line():
    """A leaf w, and workers that differentiate the mean of x * w."""
    w = ta.Tensor(np.ones(3), requires_grad=True, name="w")
    with Workers(lambda x, _: (w * x).mean(), [w], 2) as workers:
        yield w, workers


@pytest.mark.parametrize("n", [1, 2, 3])
def test_with_a_batch_for_each_worker_every_bit_is_that_of_one_process(n):
    model = gpt()
    alone = accumulate(lambda x, y: model(x, y)[1], batches(n))
    right = gradients(model)
    with Workers(lambda x, y: model(x, y)[1], model.parameters(), n) as workers:
        for _ in range(2):
            model.zero_grad()
            assert workers.accumulate(batches(n)) == alone
            assert all(map(np.array_equal, gradients(model), right))


def test_more_batches_than_workers_are_shared_in_turn():
    model = gpt()
    alone = accumulate(lambda x, y: model(x, y)[1], batches(5))
    right = gradients(model)
    model.zero_grad()
    with Workers(lambda x, y: model(x, y)[1], model.parameters(), 2) as workers:
        assert workers.accumulate(batches(5)) == pytest.approx(alone, rel=1e-6)
    assert all(np.allclose(g, r, rtol=1e-4, atol=1e-6) for g, r in zip(gradients(model), right, strict=True))


def test_workers_follow_an_optimizer_to_the_same_weights():
    def train(accumulate, model):
        optimizer = ta.optim.AdamW(model.parameters(), 1e-2)
        for i in range(4):
            optimizer.zero_grad()
            accumulate(batches(4)[i % 2 :: 2])
            optimizer.step()
        return [p.numpy().tobytes() for p in model.parameters()]

    one, other = gpt(), gpt()
    with Workers(lambda x, y: one(x, y)[1], one.parameters(), 2) as workers:
        shared = train(workers.accumulate, one)
    assert shared == train(lambda batches: accumulate(lambda x, y: other(x, y)[1], batches), other)


def test_gradients_add_to_what_is_there_and_keep_their_own_memory(line):
    w, workers = line
    workers.accumulate([(np.ones(3), 1)])
    first = w.grad.numpy()
    workers.accumulate([(np.full(3, 2.0), 1), (np.full(3, 4.0), 1)])
    assert np.allclose(first, 1 / 3) and np.allclose(w.grad.numpy(), 1 / 3 + 1)


def test_a_parameter_that_no_batch_needs_has_no_gradient():
    w, unused = (ta.Tensor([1.0], requires_grad=True) for _ in range(2))
    with Workers(lambda x, _: (w * x).sum(), [w, unused, w], 2) as workers:
        workers.accumulate([(np.ones(1, np.float32), 1)])
    assert w.grad.item() == 1 and unused.grad is None


def test_an_error_in_a_worker_is_raised_here_and_the_workers_go_on(line):
    w, workers = line
    with pytest.raises(ValueError, match="multiply: cannot take shapes"):
        workers.accumulate([(np.ones(3), 1), (np.ones(5), 1)])
    assert w.grad is None
    assert workers.accumulate([(np.ones(3), 1)]) == 1


def test_a_graph_that_still_needs_the_weights_is_named():
    w = ta.Tensor(np.ones(3), requires_grad=True, name="w")
    alive = w * w
    with Workers(lambda x, _: (w * x).mean(), [w], 1) as workers, pytest.raises(RuntimeError, match="data of w"):
        workers.accumulate([(np.ones(3), 1)])
    assert alive.requires_grad


def test_leaving_the_block_ends_the_processes(line):
    _, workers = line
    workers.close()
    assert not any(process.is_alive() for process in workers.processes)
    with pytest.raises(RuntimeError, match="has ended"):
        workers.accumulate([(np.ones(3), 1)])


def test_a_killed_worker_is_an_error_and_no_endless_wait(line):
    _, workers = line
    workers.processes[1].kill()
    workers.processes[1].join()
    with pytest.raises(RuntimeError, match="has ended"):
        workers.accumulate([(np.ones(3), 1)])


def test_workers_end_with_their_parent_even_if_it_is_killed():
    script = """if True:
        import time, tinygrad_attn as ta
        from tinygrad_attn.parallel import Workers
        w = ta.Tensor([1.0], requires_grad=True)
        workers = Workers(lambda x, _: (w * x).sum(), [w], 2)
        print(*(p.pid for p in workers.processes), flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(pids) == 2 and not any(map(runs, pids))


def runs(pid):
    """Whether there is such a process, and not only its entry in the table, which waits to be collected."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("request_to_end", [signal.SIGINT, signal.SIGTERM])
def test_requests_to_end_are_left_to_the_parent(line, request_to_end):
    _, workers = line
    for _ in range(2):
        assert workers.accumulate([(np.ones(3), 1), (np.ones(3), 1)]) == 1
        for process in workers.processes:
            os.kill(process.pid, request_to_end)


def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="at least one process, got n=0"):
        Workers(lambda x, y: x, [], 0)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(NotImplementedError, match="cannot fork"):
        Workers(lambda x, y: x, [], 2)


def test_parameters_may_be_single_numbers():
    w = ta.Tensor(2.0, requires_grad=True)
    with Workers(lambda x, _: w * x, [w], 2) as workers:
        workers.accumulate([(np.float32(1), 1), (np.float32(3), 1)])
    assert isinstance(w.grad.numpy(), np.ndarray) and w.grad.item() == 2


def test_a_batch_that_cannot_be_sent_ends_the_workers_and_leaves_no_answer_behind(line):
    _, workers = line
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        workers.accumulate([(np.ones(3), 1), (lambda: None, 1)])
    with pytest.raises(RuntimeError, match="has ended"):
        workers.accumulate([(np.ones(3), 1)])


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("stays where it is")


def test_an_error_that_cannot_be_sent_is_told_in_words():
    def loss(x, _):
        raise Unsendable("too far")

    with Workers(loss, [], 1) as workers, pytest.raises(RuntimeError, match="Unsendable: too far"):
        workers.accumulate([(np.ones(1), 1)])


def test_an_error_carries_the_lines_of_the_worker(line):
    _, workers = line
    with pytest.raises(ValueError) as caught:
        workers.accumulate([(np.ones(5), 1)])
    assert "In a worker process" in caught.value.__notes__[0] and __file__ in caught.value.__notes__[0]


def test_workers_made_later_do_not_keep_the_first_ones_alive():
    w = ta.Tensor([1.0], requires_grad=True)
    first, second = (Workers(lambda x, _: (w * x).sum(), [w], 2) for _ in range(2))
    first.close()
    assert second.accumulate([(np.ones(1, np.float32), 1)]) == 1
    second.close()


def test_workers_that_nobody_closed_end_with_the_program():
    script = """if True:
        import tinygrad_attn as ta
        w = ta.Tensor([1.0], requires_grad=True)
        workers = ta.parallel.Workers(lambda x, _: (w * x).sum(), [w], 2)
        print(*(p.pid for p in workers.processes), flush=True)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and not done.stderr
    assert not any(runs(int(pid)) for pid in done.stdout.split())


def test_a_model_that_was_converted_needs_new_workers(line):
    w, workers = line
    w.data = np.ones(3, np.float32)
    with pytest.raises(TypeError, match="w was float64"):
        workers.accumulate([(np.ones(3), 1)])
