"""The team's barrier: threads spin, and yield to the operating system where that takes long."""

from __future__ import annotations

from minitvm.runtime.team import pause_of, yield_of

_SPINS = 4096

_BARRIER = """define internal void @minitvm.barrier(ptr %barrier, i64 %threads) noinline nounwind {{
start:
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %turn = getelementptr i8, ptr %barrier, i64 64
  %generation = load atomic i32, ptr %turn monotonic, align 4
  %before = atomicrmw add ptr %barrier, i32 1 acq_rel
  %count = trunc i64 %threads to i32
  %arrived = add i32 %before, 1
  %last = icmp eq i32 %arrived, %count
  br i1 %last, label %release, label %wait
release:
  store atomic i32 0, ptr %barrier monotonic, align 4
  %next = add i32 %generation, 1
  store atomic i32 %next, ptr %turn release, align 4
  br label %done
wait:
  %spins = phi i32 [ 0, %arrive ], [ %more, %again ]
  %now = load atomic i32, ptr %turn acquire, align 4
  %open = icmp ne i32 %now, %generation
  br i1 %open, label %done, label %spin
spin:
{pause}
  %more = add i32 %spins, 1
  %low = and i32 %more, {mask}
  %long = icmp eq i32 %low, 0
  br i1 %long, label %rest, label %again
rest:
{rest}
  br label %again
again:
  br label %wait
done:
  ret void
}}"""


def barrier_function(features: frozenset[str]) -> str:
    """The barrier as an internal function, with what it declares.

    ``features`` names the architecture (``x86``, ``aarch64``: how to pause) and ``posix`` where ``sched_yield`` exists.
    """
    pause, declare_pause = pause_of(next((arch for arch in ("x86", "aarch64") if arch in features), ""))
    rest, declare_rest = yield_of("" if "posix" in features else "windows")
    text = _BARRIER.format(pause=f"  {pause}", rest=f"  %ignored = {rest}", mask=_SPINS - 1)
    return "\n".join([*filter(None, (declare_pause, declare_rest)), text])
