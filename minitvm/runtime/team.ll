; What the threads of a team run, joined with @minitvm.pause and @minitvm.rest of the machine (target.py).
; team.py starts the threads; nothing is called back per kernel.

%word = type { i64, [56 x i8] }                 ; one cache line each, so that threads do not disturb one another
%work = type { ptr, ptr, [48 x i8] }            ; a function(slots, thread, threads, barrier), and its slots
%barrier = type { i32, [60 x i8], i32, [60 x i8] } ; threads that have arrived; how often it has opened (codegen/llvm/barrier.ll)
%worker = type { i64, i64, [48 x i8] }          ; 1 while it sleeps; 1 where it has to be woken

%team = type {
  %word,          ; 0: the epoch, which counts runs; workers wait for it to change
  %work,          ; 1: what to run; nothing: workers end
  %word,          ; 2: workers that have finished this run
  %barrier,       ; 3
  [0 x %worker]   ; 4: by number; 0, who publishes, has one that nobody uses
}

define i64 @team_bytes(i64 %threads) {
  %end = getelementptr %team, ptr null, i64 0, i32 4, i64 %threads
  %bytes = ptrtoint ptr %end to i64
  ret i64 %bytes
}

; Lets the workers run the function, or end; how many of them are asleep and have to be woken.
define i64 @team_publish(ptr %team, i64 %threads, ptr %function, ptr %slots) {
entry:
  %work = getelementptr %team, ptr %team, i64 0, i32 1
  store ptr %function, ptr %work, align 8
  %work.slots = getelementptr %work, ptr %work, i64 0, i32 1
  store ptr %slots, ptr %work.slots, align 8
  %done = getelementptr %team, ptr %team, i64 0, i32 2
  store atomic i64 0, ptr %done monotonic, align 8
  %epoch = atomicrmw add ptr %team, i64 1 seq_cst
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %next, %body ]
  %asleep = phi i64 [ 0, %entry ], [ %asleep.next, %body ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %body, label %exit
body:
  %state = getelementptr %team, ptr %team, i64 0, i32 4, i64 %i
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %slept = extractvalue { i64, i1 } %swap, 1
  %wake = zext i1 %slept to i64
  %state.wake = getelementptr %worker, ptr %state, i64 0, i32 1
  store i64 %wake, ptr %state.wake, align 8
  %asleep.next = add i64 %asleep, %wake
  %next = add i64 %i, 1
  br label %head
exit:
  ret i64 %asleep
}

; Whether a worker has to be woken after @team_publish.
define i64 @team_sleeps(ptr %team, i64 %thread) {
  %wake = getelementptr %team, ptr %team, i64 0, i32 4, i64 %thread, i32 1
  %flag = load i64, ptr %wake, align 8
  ret i64 %flag
}

define internal void @run(ptr %team, ptr %function, i64 %thread, i64 %threads) {
  %at = getelementptr %team, ptr %team, i64 0, i32 1, i32 1
  %slots = load ptr, ptr %at, align 8
  %barrier = getelementptr %team, ptr %team, i64 0, i32 3
  call void %function(ptr %slots, i64 %thread, i64 %threads, ptr %barrier)
  ret void
}

; Runs what was published as thread 0; returns when all threads are done.
define void @team_take_part(ptr %team, i64 %threads) {
entry:
  %work = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %work, align 8
  call void @run(ptr %team, ptr %function, i64 0, i64 %threads)
  %done = getelementptr %team, ptr %team, i64 0, i32 2
  %others = sub i64 %threads, 1
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %again ], [ %more, %rest ]
  %n = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %n, %others
  br i1 %all, label %exit, label %spin
spin:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, 2000
  br i1 %long, label %rest, label %again
again:
  call void @minitvm.pause()
  br label %wait
rest:
  call void @minitvm.rest()
  br label %wait
exit:
  ret void
}

; Runs what is published after the epoch %from, again and again.  Returns the epoch it has seen when there was nothing
; for roughly 100 microseconds, asleep until it is woken; -1 where the team ends.
define i64 @team_work(ptr %team, i64 %thread, i64 %threads, i64 %from) {
entry:
  %state = getelementptr %team, ptr %team, i64 0, i32 4, i64 %thread
  br label %fresh
fresh:
  %seen = phi i64 [ %from, %entry ], [ %epoch, %call ], [ %seen, %reclaim ]
  br label %look
look:
  %spins = phi i64 [ 0, %fresh ], [ %more, %again ]
  %epoch = load atomic i64, ptr %team seq_cst, align 8
  %same = icmp eq i64 %epoch, %seen
  br i1 %same, label %spin, label %work
spin:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, 4000
  br i1 %long, label %sleep, label %again
again:
  call void @minitvm.pause()
  br label %look
work:
  %at = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %at, align 8
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %leave, label %call
call:
  call void @run(ptr %team, ptr %function, i64 %thread, i64 %threads)
  %done = getelementptr %team, ptr %team, i64 0, i32 2
  %before = atomicrmw add ptr %done, i64 1 acq_rel
  br label %fresh
sleep:
  store atomic i64 1, ptr %state seq_cst, align 8
  %now = load atomic i64, ptr %team seq_cst, align 8
  %still = icmp eq i64 %now, %seen
  br i1 %still, label %return, label %reclaim
reclaim: ; published meanwhile: back to work, unless the publisher is about to wake it
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %fresh, label %return
return:
  ret i64 %seen
leave:
  ret i64 -1
}
