; What the threads of a team run, joined with codegen/llvm/sharing.ll and with @minitvm.pause, @minitvm.rest, @minitvm.cpu,
; @minitvm.now and @minitvm.used of the machine (target.py).  native.py starts the threads; nothing is called back per kernel.
; Workers that come while a run is open take part in it; its end waits for none but those that hold work of it.
;
; A worker's visit is 0 outside of a run, 1 inside, 2 away.  From 0 to 1 and from 1 to 2 only the worker sets it, from 2 to
; 0 only the run's end; 2 to 1 is the worker's, by compare-and-swap.  Between kernels it goes away: it returns out of the
; model's code and remembers where it was (%minitvm.place).  Away it holds no work, stands in no code that might be
; unloaded and reads no memory but the team's and its own stack.  So a run may end meanwhile: who comes back finds 0,
; not 2, and forgets where it was.
;
; Memory orders.  Coming in: the worker sets its visit, then reads %open; the end clears %open, then reads the visits.  Both are
; seq_cst, so that one of them sees the other: a worker reads function and slots only in a run whose end waits for it.
; Going away or out is a release that the end's reading acquires: what the worker read is read before memory is used
; again.  What it wrote was released as finished work.  Coming back acquires %finished, which counts the same run: had
; that one ended, the swap would fail.  All else is written between two runs, when nobody is inside.

%word = type { i64, [56 x i8] }                 ; one cache line each, so that threads do not disturb one another
%work = type { ptr, ptr, [48 x i8] }            ; a function(slots, thread, threads, place), and its slots
%member = type { i64, [56 x i8], i64, i64, i64, [40 x i8] } ; its share; 1 while it sleeps, 1 where it has to be woken; its visit

%team = type {
  %word,          ; 0: the epoch, which counts runs; workers wait for it to change
  %work,          ; 1: what to run; nothing: workers end
  %word,          ; 2: the CPU that the run was published on
  %word,          ; 3: what is finished, with which %minitvm.run begins
  %word,          ; 4: the run's epoch while workers may come in, otherwise 0
  [0 x %member]   ; 5: by number; 0, who publishes, never sleeps
}

define i64 @team_bytes(i64 %threads) {
  %end = getelementptr %team, ptr null, i64 0, i32 5, i64 %threads
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
  %finished = getelementptr %team, ptr %team, i64 0, i32 3
  store atomic i64 0, ptr %finished monotonic, align 8 ; which who is away still looks at
  br label %clear
clear:
  %j = phi i64 [ 0, %entry ], [ %j.next, %clear ]
  %share = getelementptr %team, ptr %team, i64 0, i32 5, i64 %j
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
  %cpu.at = getelementptr %team, ptr %team, i64 0, i32 2
  store atomic i64 %cpu, ptr %cpu.at monotonic, align 8
  %epoch = load i64, ptr %team, align 8
  %epoch.new = add i64 %epoch, 1
  %open = getelementptr %team, ptr %team, i64 0, i32 4
  store atomic i64 %epoch.new, ptr %open seq_cst, align 8
  store atomic i64 %epoch.new, ptr %team seq_cst, align 8
  br label %head
head:
  %i = phi i64 [ 1, %publish ], [ %next, %body ]
  %asleep = phi i64 [ 0, %publish ], [ %asleep.next, %body ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %body, label %exit
body:
  %state = getelementptr %team, ptr %team, i64 0, i32 5, i64 %i, i32 2
  %swap = cmpxchg ptr %state, i64 1, i64 0 seq_cst seq_cst
  %slept = extractvalue { i64, i1 } %swap, 1
  %wake = zext i1 %slept to i64
  %state.wake = getelementptr %team, ptr %team, i64 0, i32 5, i64 %i, i32 3
  store i64 %wake, ptr %state.wake, align 8
  %asleep.next = add i64 %asleep, %wake
  %next = add i64 %i, 1
  br label %head
exit:
  ret i64 %asleep
}

; Whether a worker has to be woken after @team_publish.
define i64 @team_sleeps(ptr %team, i64 %thread) {
  %wake = getelementptr %team, ptr %team, i64 0, i32 5, i64 %thread, i32 3
  %flag = load i64, ptr %wake, align 8
  ret i64 %flag
}

; The CPU that the last run was published on; -1 where the system does not say.
define i64 @team_cpu(ptr %team) {
  %cpu.at = getelementptr %team, ptr %team, i64 0, i32 2
  %cpu = load atomic i64, ptr %cpu.at monotonic, align 8
  ret i64 %cpu
}

; Runs what was published as thread 0; returns when all work is done and nobody is inside.
define void @team_take_part(ptr %team, i64 %threads) {
entry:
  %work = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %work, align 8
  %slots.at = getelementptr %work, ptr %work, i64 0, i32 1
  %slots = load ptr, ptr %slots.at, align 8
  %run = getelementptr %team, ptr %team, i64 0, i32 3
  %place = alloca %minitvm.place, align 8
  store %minitvm.place zeroinitializer, ptr %place, align 8
  store ptr %run, ptr %place, align 8
  call void %function(ptr %slots, i64 0, i64 %threads, ptr %place)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  br label %close
close:
  %spins = phi i64 [ 0, %entry ], [ %more, %wait ]
  %closed = call i1 @minitvm.close(ptr %run, i64 %threads)
  br i1 %closed, label %exit, label %wait
wait:
  %more = call i64 @spin(i64 %spins)
  br label %close
exit:
  ret void
}

; One turn of a wait, after so many; now and then another thread may have the CPU.
define internal i64 @spin(i64 %spins) {
  call void @minitvm.pause()
  %more = add i64 %spins, 1
  %low = and i64 %more, 2047
  %long = icmp eq i64 %low, 0
  br i1 %long, label %rest, label %done
rest:
  call void @minitvm.rest()
  br label %done
done:
  ret i64 %more
}

; A worker has run since it last gave up its CPU: since what time, and with how much time of its own.
%since = type { i64, i64 }

define internal void @fresh(ptr %since) {
  %now = call i64 @minitvm.now()
  %used = call i64 @minitvm.used()
  store i64 %now, ptr %since, align 8
  %used.at = getelementptr %since, ptr %since, i64 0, i32 1
  store i64 %used, ptr %used.at, align 8
  ret void
}

; Gives up the CPU after a millisecond.  Whoever else needs it has it now, while the worker holds no work, and not in the
; middle of a kernel, for which all would wait.
define internal void @give.way(ptr %since) {
  %before = load i64, ptr %since, align 8
  %now = call i64 @minitvm.now()
  %passed = sub i64 %now, %before
  %may = icmp sgt i64 %passed, 1000000
  br i1 %may, label %look, label %done
look:
  %used.at = getelementptr %since, ptr %since, i64 0, i32 1
  %used.before = load i64, ptr %used.at, align 8
  %used = call i64 @minitvm.used()
  %spent = sub i64 %used, %used.before
  %should = icmp sgt i64 %spent, 1000000
  br i1 %should, label %rest, label %done
rest:
  call void @minitvm.rest()
  call void @fresh(ptr %since)
  br label %done
done:
  ret void
}

; A worker that is inside runs the function; it is outside in the end.
define internal void @visit(ptr %team, ptr %visit, ptr %since, i64 %thread, i64 %threads, ptr %function) {
entry:
  %slots.at = getelementptr %team, ptr %team, i64 0, i32 1, i32 1
  %slots = load ptr, ptr %slots.at, align 8
  %run = getelementptr %team, ptr %team, i64 0, i32 3
  %place = alloca %minitvm.place, align 8
  store %minitvm.place zeroinitializer, ptr %place, align 8
  store ptr %run, ptr %place, align 8
  %work.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 2
  %from.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 3
  br label %inside
inside:
  call void %function(ptr %slots, i64 %thread, i64 %threads, ptr %place)
  %from = load i64, ptr %from.at, align 8
  %between = icmp sgt i64 %from, 0
  br i1 %between, label %away, label %leave
leave:
  store atomic i64 0, ptr %visit seq_cst, align 8
  br label %out
away:
  store atomic i64 2, ptr %visit seq_cst, align 8
  call void @give.way(ptr %since)
  %work = load i64, ptr %work.at, align 8
  br label %wait
wait:
  %spins = phi i64 [ 0, %away ], [ %more, %again ]
  %finished = load atomic i64, ptr %run acquire, align 8
  %all = icmp uge i64 %finished, %work
  br i1 %all, label %back, label %spin
spin:
  %more = call i64 @spin(i64 %spins)
  %seen = load atomic i64, ptr %visit monotonic, align 8
  %closed = icmp eq i64 %seen, 0
  br i1 %closed, label %out, label %again
again:
  br label %wait
back:
  %swap = cmpxchg ptr %visit, i64 2, i64 1 seq_cst seq_cst
  %still = extractvalue { i64, i1 } %swap, 1
  br i1 %still, label %inside, label %out
out:
  ret void
}

; Runs what is published after the epoch %from, again and again.  Returns the epoch it has seen when there was nothing
; for roughly 100 microseconds, asleep until it is woken; -1 where the team ends.  Where it could go elsewhere (%moves),
; it does not share the CPU of the thread that it is to help: it returns -2 minus the epoch before.
define i64 @team_work(ptr %team, i64 %thread, i64 %threads, i64 %from, i64 %moves) {
entry:
  %state = getelementptr %team, ptr %team, i64 0, i32 5, i64 %thread, i32 2
  %visit = getelementptr %team, ptr %team, i64 0, i32 5, i64 %thread, i32 4
  %open = getelementptr %team, ptr %team, i64 0, i32 4
  %since = alloca %since, align 8
  call void @fresh(ptr %since)
  br label %fresh
fresh:
  %seen = phi i64 [ %from, %entry ], [ %epoch, %late ], [ %running, %call ], [ %seen, %reclaim ]
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
  %there = call i64 @team_cpu(ptr %team)
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
  call void @give.way(ptr %since)
  store atomic i64 1, ptr %visit seq_cst, align 8
  %running = load atomic i64, ptr %open seq_cst, align 8
  %over = icmp eq i64 %running, 0
  br i1 %over, label %late, label %enter
late:
  store atomic i64 0, ptr %visit seq_cst, align 8
  br label %fresh
enter:
  %at = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %at, align 8
  %stop = icmp eq ptr %function, null
  br i1 %stop, label %leave, label %call
call:
  call void @visit(ptr %team, ptr %visit, ptr %since, i64 %thread, i64 %threads, ptr %function)
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
