; Control flow without Python: loops and choices whose bodies are native segments, and each other.
; Joined with @minitvm.meet and stay (codegen/llvm/sharing.ll).  control.py fills the records; every thread runs all of it,
; thread 0 alone moves values.  A value is named by the address of its slot, which holds the address of its memory.

%step = type { ptr, ptr, i64 }          ; a function(argument, thread, threads, place); on thread 0 alone where 1
%move = type { ptr, ptr, i64 }          ; slot to, slot from, bytes
%list = type { i64, ptr }
%block = type { %list, %list, %list, i64 } ; slots to set to others' (%move), steps, results that must be 0 (%move); failed
%if = type { ptr, ptr, %block, %list, %block, %list } ; stop flag, slot of the condition, then each branch and its results
; Stop flag; first trip, trips at most, trips made; slots of trip count, condition, and of the body's trip number and
; condition before and after a trip; values to move before all trips, after a trip, after all, and to stack; the body.
%loop = type { ptr, i64, i64, i64, ptr, ptr, ptr, ptr, ptr, %list, %list, %list, %list, %block }
%fail = type { ptr, i64 }

declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @at(ptr %slot) alwaysinline {
  %memory = load ptr, ptr %slot, align 8
  ret ptr %memory
}

; Copies each value of the list, to place %place of what it goes to.
define internal void @moved(ptr %list, i64 %place) {
entry:
  %count = load i64, ptr %list, align 8
  %first.at = getelementptr %list, ptr %list, i64 0, i32 1
  %first = load ptr, ptr %first.at, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %exit
body:
  %to.at = getelementptr %move, ptr %first, i64 %i
  %from.at = getelementptr %move, ptr %first, i64 %i, i32 1
  %bytes.at = getelementptr %move, ptr %first, i64 %i, i32 2
  %to.slot = load ptr, ptr %to.at, align 8
  %from.slot = load ptr, ptr %from.at, align 8
  %bytes = load i64, ptr %bytes.at, align 8
  %to = call ptr @at(ptr %to.slot)
  %from = call ptr @at(ptr %from.slot)
  %offset = mul i64 %place, %bytes
  %target = getelementptr i8, ptr %to, i64 %offset
  call void @llvm.memmove.p0.p0.i64(ptr %target, ptr %from, i64 %bytes, i1 false)
  %next = add i64 %i, 1
  br label %head
exit:
  ret void
}

; Points each slot of the list to the memory of another.
define internal void @bound(ptr %list) {
entry:
  %count = load i64, ptr %list, align 8
  %first.at = getelementptr %list, ptr %list, i64 0, i32 1
  %first = load ptr, ptr %first.at, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %exit
body:
  %to.at = getelementptr %move, ptr %first, i64 %i
  %from.at = getelementptr %move, ptr %first, i64 %i, i32 1
  %to.slot = load ptr, ptr %to.at, align 8
  %from.slot = load ptr, ptr %from.at, align 8
  %memory = call ptr @at(ptr %from.slot)
  store ptr %memory, ptr %to.slot, align 8
  %next = add i64 %i, 1
  br label %head
exit:
  ret void
}

; Whether any of the numbers (64 bits each) in the values of the list is not 0.
define internal i1 @wrong(ptr %list) {
entry:
  %count = load i64, ptr %list, align 8
  %first.at = getelementptr %list, ptr %list, i64 0, i32 1
  %first = load ptr, ptr %first.at, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %each ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %value, label %fine
value:
  %from.at = getelementptr %move, ptr %first, i64 %i, i32 1
  %bytes.at = getelementptr %move, ptr %first, i64 %i, i32 2
  %from.slot = load ptr, ptr %from.at, align 8
  %bytes = load i64, ptr %bytes.at, align 8
  %from = call ptr @at(ptr %from.slot)
  %next = add i64 %i, 1
  br label %each
each:
  %at = phi i64 [ 0, %value ], [ %behind, %number ]
  %left = icmp ult i64 %at, %bytes
  br i1 %left, label %number, label %head
number:
  %number.at = getelementptr i8, ptr %from, i64 %at
  %code = load i64, ptr %number.at, align 8
  %behind = add i64 %at, 8
  %zero = icmp eq i64 %code, 0
  br i1 %zero, label %each, label %found
found:
  ret i1 true
fine:
  ret i1 false
}

; Runs a block's steps, until the flag is set: by one of them, because a check failed, or somebody set the word behind it.
define internal void @run(ptr %block, ptr %flag, i64 %thread, i64 %threads, ptr %place) {
entry:
  %zeroth = icmp eq i64 %thread, 0
  %alone = icmp eq i64 %threads, 1
  br i1 %zeroth, label %bind, label %start
bind:
  call void @bound(ptr %block)
  br label %start
start:
  call void @minitvm.meet(ptr %place, i64 %threads)
  %steps = getelementptr %block, ptr %block, i64 0, i32 1
  %count = load i64, ptr %steps, align 8
  %first.at = getelementptr %list, ptr %steps, i64 0, i32 1
  %first = load ptr, ptr %first.at, align 8
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %agree ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %checks
body:
  %function.at = getelementptr %step, ptr %first, i64 %i
  %argument.at = getelementptr %step, ptr %first, i64 %i, i32 1
  %threads.at = getelementptr %step, ptr %first, i64 %i, i32 2
  %function = load ptr, ptr %function.at, align 8
  %argument = load ptr, ptr %argument.at, align 8
  %wanted = load i64, ptr %threads.at, align 8
  %single = icmp eq i64 %wanted, 1
  br i1 %single, label %by.one, label %by.all
by.one:
  br i1 %zeroth, label %one, label %after
one:
  call void %function(ptr %argument, i64 0, i64 1, ptr %place)
  br label %after
by.all:
  call void %function(ptr %argument, i64 %thread, i64 %threads, ptr %place)
  br label %after
after:
  br i1 %zeroth, label %hear, label %agree
hear: ; for all: others might look sooner or later
  %told.at = getelementptr i64, ptr %flag, i64 1
  %told = load atomic i64, ptr %told.at monotonic, align 8
  %ends = icmp ne i64 %told, 0
  br i1 %ends, label %heed, label %agree
heed:
  store i64 1, ptr %flag, align 8
  br label %agree
agree:
  call void @minitvm.meet(ptr %place, i64 %threads)
  %stopped = load i64, ptr %flag, align 8
  call void @minitvm.meet(ptr %place, i64 %threads)
  %next = add i64 %i, 1
  %stops = icmp ne i64 %stopped, 0
  br i1 %stops, label %exit, label %head
checks:
  br i1 %zeroth, label %look, label %exit
look:
  %results = getelementptr %block, ptr %block, i64 0, i32 2
  %bad = call i1 @wrong(ptr %results)
  br i1 %bad, label %failed, label %exit
failed:
  %failed.at = getelementptr %block, ptr %block, i64 0, i32 3
  store i64 1, ptr %failed.at, align 8
  store i64 1, ptr %flag, align 8
  br label %exit
exit:
  call void @minitvm.meet(ptr %place, i64 %threads)
  ret void
}

define void @control_fail(ptr %fail, i64 %thread, i64 %threads, ptr %place) {
  %flag = call ptr @at(ptr %fail)
  %failed.at = getelementptr %fail, ptr %fail, i64 0, i32 1
  store i64 1, ptr %failed.at, align 8
  store i64 1, ptr %flag, align 8
  ret void
}

define void @control_if(ptr %if, i64 %thread, i64 %threads, ptr %place) {
entry:
  call void @minitvm.stay(ptr %place, i64 %threads)
  %zeroth = icmp eq i64 %thread, 0
  %flag = call ptr @at(ptr %if)
  %condition.at = getelementptr %if, ptr %if, i64 0, i32 1
  %condition.slot = load ptr, ptr %condition.at, align 8
  %condition = call ptr @at(ptr %condition.slot)
  %byte = load i8, ptr %condition, align 1
  %holds = icmp ne i8 %byte, 0
  %then = getelementptr %if, ptr %if, i64 0, i32 2
  %orelse = getelementptr %if, ptr %if, i64 0, i32 4
  %then.results = getelementptr %if, ptr %if, i64 0, i32 3
  %orelse.results = getelementptr %if, ptr %if, i64 0, i32 5
  %block = select i1 %holds, ptr %then, ptr %orelse
  %results = select i1 %holds, ptr %then.results, ptr %orelse.results
  call void @run(ptr %block, ptr %flag, i64 %thread, i64 %threads, ptr %place)
  br i1 %zeroth, label %move, label %exit
move:
  call void @moved(ptr %results, i64 0)
  br label %exit
exit:
  ret void
}

; Trips from the first on; those before it were made by calls before.  Ends early after as many as it may make.
define void @control_loop(ptr %loop, i64 %thread, i64 %threads, ptr %place) {
entry:
  call void @minitvm.stay(ptr %place, i64 %threads)
  %zeroth = icmp eq i64 %thread, 0
  %flag = call ptr @at(ptr %loop)
  %first.at = getelementptr %loop, ptr %loop, i64 0, i32 1
  %most.at = getelementptr %loop, ptr %loop, i64 0, i32 2
  %made.at = getelementptr %loop, ptr %loop, i64 0, i32 3
  %trips.at = getelementptr %loop, ptr %loop, i64 0, i32 4
  %given.at = getelementptr %loop, ptr %loop, i64 0, i32 5
  %number.at = getelementptr %loop, ptr %loop, i64 0, i32 6
  %before.at = getelementptr %loop, ptr %loop, i64 0, i32 7
  %after.at = getelementptr %loop, ptr %loop, i64 0, i32 8
  %start.list = getelementptr %loop, ptr %loop, i64 0, i32 9
  %next.list = getelementptr %loop, ptr %loop, i64 0, i32 10
  %end.list = getelementptr %loop, ptr %loop, i64 0, i32 11
  %stack.list = getelementptr %loop, ptr %loop, i64 0, i32 12
  %body = getelementptr %loop, ptr %loop, i64 0, i32 13
  %first = load i64, ptr %first.at, align 8
  %most = load i64, ptr %most.at, align 8
  %trips.slot = load ptr, ptr %trips.at, align 8
  %given.slot = load ptr, ptr %given.at, align 8
  %number.slot = load ptr, ptr %number.at, align 8
  %before.slot = load ptr, ptr %before.at, align 8
  %after.slot = load ptr, ptr %after.at, align 8
  %trips.memory = call ptr @at(ptr %trips.slot)
  %trips = load i64, ptr %trips.memory, align 8
  %number = call ptr @at(ptr %number.slot)
  %before = call ptr @at(ptr %before.slot)
  %fresh = icmp eq i64 %first, 0
  %starts = and i1 %fresh, %zeroth
  br i1 %starts, label %start, label %ready
start:
  %given = call ptr @at(ptr %given.slot)
  %going = load i8, ptr %given, align 1
  store i8 %going, ptr %before, align 1
  call void @moved(ptr %start.list, i64 0)
  br label %ready
ready:
  call void @minitvm.meet(ptr %place, i64 %threads)
  br label %head
head:
  %i = phi i64 [ %first, %ready ], [ %next, %again ]
  %below.most = icmp slt i64 %i, %most
  %below.trips = icmp slt i64 %i, %trips
  %condition = load i8, ptr %before, align 1
  %holds = icmp ne i8 %condition, 0
  %below = and i1 %below.most, %below.trips
  %more = and i1 %below, %holds
  br i1 %more, label %trip, label %done
trip:
  br i1 %zeroth, label %count, label %go
count:
  store i64 %i, ptr %number, align 8
  br label %go
go:
  call void @run(ptr %body, ptr %flag, i64 %thread, i64 %threads, ptr %place)
  %stopped = load i64, ptr %flag, align 8
  call void @minitvm.meet(ptr %place, i64 %threads)
  %stops = icmp ne i64 %stopped, 0
  br i1 %stops, label %exit, label %advance
advance:
  %next = add i64 %i, 1
  br i1 %zeroth, label %carry, label %again
carry:
  call void @moved(ptr %stack.list, i64 %i)
  %after = call ptr @at(ptr %after.slot)
  %kept = load i8, ptr %after, align 1
  call void @moved(ptr %next.list, i64 0)
  store i8 %kept, ptr %before, align 1
  br label %again
again:
  call void @minitvm.meet(ptr %place, i64 %threads)
  br label %head
done:
  br i1 %zeroth, label %end, label %exit
end:
  store i64 %i, ptr %made.at, align 8
  call void @moved(ptr %end.list, i64 0)
  br label %exit
exit:
  ret void
}
