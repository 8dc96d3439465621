; The team's barrier: threads spin, and yield to the operating system where that takes long.
; Joined with @minitvm.pause and @minitvm.rest of the machine (target.py).

%minitvm.barrier = type { i32, [60 x i8], i32, [60 x i8] } ; threads that have arrived; how often it has opened

define internal void @minitvm.barrier(ptr %barrier, i64 %threads) noinline nounwind {
start:
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %turn = getelementptr %minitvm.barrier, ptr %barrier, i64 0, i32 2
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
  call void @minitvm.pause()
  %more = add i32 %spins, 1
  %low = and i32 %more, 4095
  %long = icmp eq i32 %low, 0
  br i1 %long, label %rest, label %again
rest:
  call void @minitvm.rest()
  br label %again
again:
  br label %wait
done:
  ret void
}
