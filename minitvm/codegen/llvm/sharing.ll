; How the threads of a team share the work of a run: by work stealing.  All of them go through the same program.  Where
; there is work for several, a thread takes some of its own share, and then of the others' who are late: it is done when
; all was taken and finished, whoever did it.  Nobody waits for a thread, therefore, but for work that one has taken; who
; comes late finds nothing left to take and catches up.  Only where threads decide by what they read have they to meet.
; Joined with @minitvm.pause and @minitvm.rest of the machine (target.py).

; What was taken of a thread's share: the piece of work by number (upper half), how much of it (lower half); its visit
; (runtime/team.ll).
%minitvm.share = type { i64, [72 x i8], i64, [40 x i8] }
; Work that is finished; the run's epoch while workers may come in, otherwise 0; the shares.
%minitvm.run = type { i64, [56 x i8], i64, [56 x i8], [0 x %minitvm.share] }
; Where a thread is: its run, pieces of work so far, all work in them; from which step of a segment it goes on (0: from the
; start), -1 where it has to stay in the run.
%minitvm.place = type { ptr, i64, i64, i64 }
%minitvm.part = type { i64, i64, i64, i64 } ; shares looked at, 0 before all; finished but not said; taken: from, to

; Takes a part of a piece of work, which comes after the part that was taken last; whether there is one.
define i1 @minitvm.take(ptr %place, ptr %part, i64 %total, i64 %thread, i64 %threads) noinline nounwind {
entry:
  %from.at = getelementptr %minitvm.part, ptr %part, i64 0, i32 2
  %to.at = getelementptr %minitvm.part, ptr %part, i64 0, i32 3
  %state = load i64, ptr %part, align 8
  %first = icmp eq i64 %state, 0
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %whole, label %team
whole:
  %some = icmp ne i64 %total, 0
  %takes = and i1 %first, %some
  %mark = zext i1 %takes to i64
  store i64 %mark, ptr %part, align 8
  store i64 0, ptr %from.at, align 8
  store i64 %total, ptr %to.at, align 8
  ret i1 %takes
team:
  %run = load ptr, ptr %place, align 8
  %piece.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 1
  %finished.at = getelementptr %minitvm.part, ptr %part, i64 0, i32 1
  br i1 %first, label %begin, label %go.on
begin:
  %piece.before = load i64, ptr %piece.at, align 8
  %piece.new = add i64 %piece.before, 1
  store i64 %piece.new, ptr %piece.at, align 8
  %work.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 2
  %work.before = load i64, ptr %work.at, align 8
  %work.new = add i64 %work.before, %total
  store i64 %work.new, ptr %work.at, align 8
  br label %shares
go.on:
  %was.from = load i64, ptr %from.at, align 8
  %was.to = load i64, ptr %to.at, align 8
  %was = sub i64 %was.to, %was.from
  %finished.before = load i64, ptr %finished.at, align 8
  %finished.now = add i64 %finished.before, %was
  %looked = sub i64 %state, 1
  br label %shares
shares: ; what is taken is counted in units, so that the lower half suffices
  %k.start = phi i64 [ 0, %begin ], [ %looked, %go.on ]
  %finished.start = phi i64 [ 0, %begin ], [ %finished.now, %go.on ]
  %piece = load i64, ptr %piece.at, align 8
  %piece.high = shl i64 %piece, 32
  %large = lshr i64 %total, 30
  %unit = add i64 %large, 1
  %rounded = add i64 %total, %large
  %units = udiv i64 %rounded, %unit
  br label %head
head:
  %k = phi i64 [ %k.start, %shares ], [ %k.next, %next ]
  %finished = phi i64 [ %finished.start, %shares ], [ 0, %next ]
  %all = icmp eq i64 %k, %threads
  br i1 %all, label %none, label %look
look: ; a thread's share are units as contiguous as can be
  %around = add i64 %thread, %k
  %around.less = sub i64 %around, %threads
  %wraps = icmp uge i64 %around, %threads
  %owner = select i1 %wraps, i64 %around.less, i64 %around
  %owner.next = add i64 %owner, 1
  %low.scaled = mul i64 %owner, %units
  %high.scaled = mul i64 %owner.next, %units
  %low = udiv i64 %low.scaled, %threads
  %high = udiv i64 %high.scaled, %threads
  %size = sub i64 %high, %low
  %share = getelementptr %minitvm.run, ptr %run, i64 0, i32 4, i64 %owner
  %word.first = load atomic i64, ptr %share monotonic, align 8
  br label %try
try:
  %word = phi i64 [ %word.first, %look ], [ %word.now, %grab ]
  %word.piece = lshr i64 %word, 32
  %gone = icmp ugt i64 %word.piece, %piece
  br i1 %gone, label %left, label %open
open:
  %begun = icmp eq i64 %word.piece, %piece
  %counted = and i64 %word, 4294967295
  %taken = select i1 %begun, i64 %counted, i64 0
  %rest = sub i64 %size, %taken
  %empty = icmp sle i64 %rest, 0
  br i1 %empty, label %left, label %grab
grab: ; half of what there is, an eighth of the share at least: who is late costs little at the end
  %half = lshr i64 %rest, 1
  %eighth = lshr i64 %size, 3
  %at.least = call i64 @llvm.umax.i64(i64 %eighth, i64 1)
  %wanted = call i64 @llvm.umax.i64(i64 %half, i64 %at.least)
  %amount = call i64 @llvm.umin.i64(i64 %wanted, i64 %rest)
  %taken.new = add i64 %taken, %amount
  %word.new = or i64 %piece.high, %taken.new
  %swap = cmpxchg ptr %share, i64 %word, i64 %word.new acq_rel monotonic
  %word.now = extractvalue { i64, i1 } %swap, 0
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %took, label %try
took:
  %from.units = add i64 %low, %taken
  %to.units = add i64 %low, %taken.new
  %from = mul i64 %from.units, %unit
  %to.rounded = mul i64 %to.units, %unit
  %to = call i64 @llvm.umin.i64(i64 %to.rounded, i64 %total)
  %state.new = add i64 %k, 1
  store i64 %state.new, ptr %part, align 8
  store i64 %finished, ptr %finished.at, align 8
  store i64 %from, ptr %from.at, align 8
  store i64 %to, ptr %to.at, align 8
  ret i1 true
left:
  %says = icmp ne i64 %finished, 0
  br i1 %says, label %say, label %next
say:
  %said = atomicrmw add ptr %run, i64 %finished release
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
none:
  store i64 0, ptr %part, align 8
  ret i1 false
}

declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)

; Work that is thread 0's alone: every thread counts it; whether this one has to do it and to say that it is finished.
define i1 @minitvm.alone(ptr %place, i64 %thread, i64 %threads) nounwind {
  %mine = icmp eq i64 %thread, 0
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %done, label %count
count:
  %work.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 2
  %work = load i64, ptr %work.at, align 8
  %work.new = add i64 %work, 1
  store i64 %work.new, ptr %work.at, align 8
  br label %done
done:
  ret i1 %mine
}

define void @minitvm.finished(ptr %place, i64 %threads) nounwind {
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %done, label %say
say:
  %run = load ptr, ptr %place, align 8
  %said = atomicrmw add ptr %run, i64 1 release
  br label %done
done:
  ret void
}

; Waits until all work that the thread has come past is finished.
define void @minitvm.barrier(ptr %place, i64 %threads) noinline nounwind {
start:
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %done, label %arrive
arrive:
  %run = load ptr, ptr %place, align 8
  %work.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 2
  %work = load i64, ptr %work.at, align 8
  br label %wait
wait:
  %spins = phi i64 [ 0, %arrive ], [ %more, %again ]
  %finished = load atomic i64, ptr %run acquire, align 8
  %all = icmp uge i64 %finished, %work
  br i1 %all, label %done, label %spin
spin:
  call void @minitvm.pause()
  %more = add i64 %spins, 1
  %low = and i64 %more, 4095
  %long = icmp eq i64 %low, 0
  br i1 %long, label %rest, label %again
rest:
  call void @minitvm.rest()
  br label %again
again:
  br label %wait
done:
  ret void
}

; A barrier that every thread has to reach: coming there is work that only it can do.
define void @minitvm.meet(ptr %place, i64 %threads) nounwind {
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %done, label %arrive
arrive:
  %work.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 2
  %work = load i64, ptr %work.at, align 8
  %work.new = add i64 %work, %threads
  store i64 %work.new, ptr %work.at, align 8
  call void @minitvm.finished(ptr %place, i64 %threads)
  call void @minitvm.barrier(ptr %place, i64 %threads)
  br label %done
done:
  ret void
}

; The step of a segment that a thread goes on from.
define i64 @minitvm.from(ptr %place, i64 %threads) nounwind {
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %start, label %look
look:
  %from.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 3
  %from = load i64, ptr %from.at, align 8
  %again = icmp sgt i64 %from, 0
  br i1 %again, label %on, label %start
on:
  store i64 0, ptr %from.at, align 8
  ret i64 %from
start:
  ret i64 0
}

; Ends a run for workers: none comes in any more, and who is away does not come back.  Whether nobody is inside.
define i1 @minitvm.close(ptr %run, i64 %threads) noinline nounwind {
entry:
  %open = getelementptr %minitvm.run, ptr %run, i64 0, i32 2
  store atomic i64 0, ptr %open seq_cst, align 8
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %next, %outside ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %look, label %closed
look:
  %visit = getelementptr %minitvm.run, ptr %run, i64 0, i32 4, i64 %i, i32 2
  %seen = load atomic i64, ptr %visit seq_cst, align 8
  switch i64 %seen, label %inside [ i64 0, label %outside i64 2, label %away ]
away: ; or it comes back just now
  %swap = cmpxchg ptr %visit, i64 2, i64 0 seq_cst seq_cst
  %gone = extractvalue { i64, i1 } %swap, 1
  br i1 %gone, label %outside, label %inside
outside:
  %next = add i64 %i, 1
  br label %head
inside:
  ret i1 false
closed:
  ret i1 true
}

; A segment's barrier before a step.  Who made the run waits here.  A worker that may leave (true) waits outside of the
; segment, which it will be called with again to go on from that step: whatever it waits for there, nobody waits for it.
; Where the run is told to stop, who made it leaves as well, as soon as it is alone: others would wait for it.
define i1 @minitvm.leaves(ptr %place, i64 %thread, i64 %threads, i64 %step, ptr %stop) nounwind {
  %told = load atomic i64, ptr %stop monotonic, align 8
  %stops = icmp ne i64 %told, 0
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %alone, label %look
alone:
  ret i1 %stops
look:
  %from.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 3
  %from = load i64, ptr %from.at, align 8
  %free = icmp eq i64 %from, 0
  %worker = icmp ne i64 %thread, 0
  %leaves = and i1 %free, %worker
  br i1 %leaves, label %leave, label %stay
leave:
  store i64 %step, ptr %from.at, align 8
  ret i1 true
stay:
  %may = and i1 %free, %stops
  br i1 %may, label %close, label %wait
close:
  %run = load ptr, ptr %place, align 8
  %closed = call i1 @minitvm.close(ptr %run, i64 %threads)
  br i1 %closed, label %end, label %wait
end:
  ret i1 true
wait:
  call void @minitvm.barrier(ptr %place, i64 %threads)
  ret i1 false
}

; Inside of control flow, all threads have to meet: they stay.
define void @minitvm.stay(ptr %place, i64 %threads) nounwind {
  %single = icmp ule i64 %threads, 1
  br i1 %single, label %done, label %mark
mark:
  %from.at = getelementptr %minitvm.place, ptr %place, i64 0, i32 3
  store i64 -1, ptr %from.at, align 8
  br label %done
done:
  ret void
}
