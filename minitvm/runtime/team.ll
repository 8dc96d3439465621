; What the threads of a team run, joined with codegen/llvm/sharing.ll and with @minitvm.pause, @minitvm.rest and @minitvm.cpu
; of the machine (target.py).  native.py starts the threads; nothing is called back per kernel.  Workers that come while a run is
; open take part in it.  Its end waits for those inside, who hold no work any more, but for nobody else.

%word = type { i64, [56 x i8] }                 ; one cache line each, so that threads do not disturb one another
%work = type { ptr, ptr, [48 x i8] }            ; a function(slots, thread, threads, place), and its slots
%member = type { i64, [56 x i8], i64, i64, [48 x i8] } ; its share; 1 while it sleeps, 1 where it has to be woken

%team = type {
  %word,          ; 0: the epoch, which counts runs; workers wait for it to change
  %work,          ; 1: what to run; nothing: workers end
  %word,          ; 2: the run's epoch while workers may come in, otherwise 0
  %word,          ; 3: workers that are inside
  %word,          ; 4: the CPU that the run was published on
  %word,          ; 5: what is finished, with which %minitvm.run begins
  [0 x %member]   ; 6: by number; 0, who publishes, never sleeps
}

define i64 @team_bytes(i64 %threads) {
  %end = getelementptr %team, ptr null, i64 0, i32 6, i64 %threads
  %bytes = ptrtoint ptr %end to i64
  ret i64 %bytes
}

; What is to be run, with nothing of it done yet.
define internal void @prepare(ptr %team, i64 %threads, ptr %function, ptr %slots) {
entry:
  %work = getelementptr %team, ptr %team, i64 0, i32 1
  store ptr %function, ptr %work, align 8
  %work.slots = getelementptr %work, ptr %work, i64 0, i32 1
  store ptr %slots, ptr %work.slots, align 8
  %finished = getelementptr %team, ptr %team, i64 0, i32 5
  store i64 0, ptr %finished, align 8
  br label %clear
clear:
  %j = phi i64 [ 0, %entry ], [ %j.next, %clear ]
  %share = getelementptr %team, ptr %team, i64 0, i32 6, i64 %j
  store i64 0, ptr %share, align 8
  %j.next = add i64 %j, 1
  %cleared = icmp uge i64 %j.next, %threads
  br i1 %cleared, label %exit, label %clear
exit:
  ret void
}

; Lets the workers run the function, or end; how many of them are asleep and have to be woken.
define i64 @team_publish(ptr %team, i64 %threads, ptr %function, ptr %slots) {
entry:
  call void @prepare(ptr %team, i64 %threads, ptr %function, ptr %slots)
  br label %publish
publish:
  %cpu = call i64 @minitvm.cpu()
  %cpu.at = getelementptr %team, ptr %team, i64 0, i32 4
  store i64 %cpu, ptr %cpu.at, align 8
  %epoch = load i64, ptr %team, align 8
  %epoch.new = add i64 %epoch, 1
  %open = getelementptr %team, ptr %team, i64 0, i32 2
  store atomic i64 %epoch.new, ptr %open seq_cst, align 8
  store atomic i64 %epoch.new, ptr %team seq_cst, align 8
  br label %head
head:
  %i = phi i64 [ 1, %publish ], [ %next, %body ]
  %asleep = phi i64 [ 0, %publish ], [ %asleep.next, %body ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %body, label %exit
body:
  %state = getelementptr %team, ptr %team, i64 0, i32 6, i64 %i, i32 2
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %slept = extractvalue { i64, i1 } %swap, 1
  %wake = zext i1 %slept to i64
  %state.wake = getelementptr %team, ptr %team, i64 0, i32 6, i64 %i, i32 3
  store i64 %wake, ptr %state.wake, align 8
  %asleep.next = add i64 %asleep, %wake
  %next = add i64 %i, 1
  br label %head
exit:
  ret i64 %asleep
}

; Whether a worker has to be woken after @team_publish.
define i64 @team_sleeps(ptr %team, i64 %thread) {
  %wake = getelementptr %team, ptr %team, i64 0, i32 6, i64 %thread, i32 3
  %flag = load i64, ptr %wake, align 8
  ret i64 %flag
}

; The CPU that the last run was published on; -1 where the system does not say.
define i64 @team_cpu(ptr %team) {
  %cpu.at = getelementptr %team, ptr %team, i64 0, i32 4
  %cpu = load i64, ptr %cpu.at, align 8
  ret i64 %cpu
}

define internal void @run(ptr %team, ptr %function, i64 %thread, i64 %threads) {
  %at = getelementptr %team, ptr %team, i64 0, i32 1, i32 1
  %slots = load ptr, ptr %at, align 8
  %run = getelementptr %team, ptr %team, i64 0, i32 5
  %place = alloca %minitvm.place, align 8
  store %minitvm.place zeroinitializer, ptr %place, align 8
  store ptr %run, ptr %place, align 8
  call void %function(ptr %slots, i64 %thread, i64 %threads, ptr %place)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  ret void
}

; Runs what was published as thread 0; returns when all work is done and nobody is inside.
define void @team_take_part(ptr %team, i64 %threads) {
entry:
  %work = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %work, align 8
  call void @run(ptr %team, ptr %function, i64 0, i64 %threads)
  %open = getelementptr %team, ptr %team, i64 0, i32 2
  store atomic i64 0, ptr %open seq_cst, align 8
  %inside = getelementptr %team, ptr %team, i64 0, i32 3
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %again ], [ %more, %rest ]
  %n = load atomic i64, ptr %inside seq_cst, align 8
  %none = icmp eq i64 %n, 0
  br i1 %none, label %exit, label %spin
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
; for roughly 100 microseconds, asleep until it is woken; -1 where the team ends.  Where it could go elsewhere (%moves),
; it does not share the CPU of the thread that it is to help: it returns -2 minus the epoch before.
define i64 @team_work(ptr %team, i64 %thread, i64 %threads, i64 %from, i64 %moves) {
entry:
  %state = getelementptr %team, ptr %team, i64 0, i32 6, i64 %thread, i32 2
  %inside = getelementptr %team, ptr %team, i64 0, i32 3
  %open = getelementptr %team, ptr %team, i64 0, i32 2
  br label %fresh
fresh:
  %seen = phi i64 [ %from, %entry ], [ %now.seen, %out ], [ %seen, %reclaim ]
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
  %here = call i64 @minitvm.cpu()
  %there.at = getelementptr %team, ptr %team, i64 0, i32 4
  %there = load i64, ptr %there.at, align 8
  %together = icmp eq i64 %here, %there
  %known = icmp sge i64 %here, 0
  %may = icmp ne i64 %moves, 0
  %in.way = and i1 %together, %known
  %should = and i1 %in.way, %may
  br i1 %should, label %aside, label %come
aside:
  %moved = sub i64 -2, %seen
  ret i64 %moved
come: ; come in before looking whether that is still allowed
  %before = atomicrmw add ptr %inside, i64 1 seq_cst
  %running = load atomic i64, ptr %open seq_cst, align 8
  %late = icmp eq i64 %running, 0
  br i1 %late, label %out, label %enter
enter:
  %at = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %at, align 8
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %leave, label %call
call:
  call void @run(ptr %team, ptr %function, i64 %thread, i64 %threads)
  br label %out
out:
  %now.seen = phi i64 [ %epoch, %come ], [ %running, %call ]
  %gone = atomicrmw sub ptr %inside, i64 1 seq_cst
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
