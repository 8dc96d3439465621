"""Kernels of a team as LLVM IR, by hand."""

LOOP = """entry:
  %part = alloca [4 x i64]
  store i64 0, ptr %part
  br label %ask
ask:
  %more = call i1 @minitvm.take(ptr %place, ptr %part, i64 TOTAL, i64 %thread, i64 %threads)
  br i1 %more, label %some, label %end
some:
  %from.at = getelementptr i64, ptr %part, i64 2
  %to.at = getelementptr i64, ptr %part, i64 3
  %from = load i64, ptr %from.at
  %to = load i64, ptr %to.at
  br label %loop
loop:
  %i = phi i64 [ %from, %some ], [ %next, %loop ]
  BODY
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %to
  br i1 %again, label %loop, label %ask
end:
  ret void"""


def shared_loop(total: str, body: str) -> str:
    """The body of a function whose threads share ``total`` iterations; ``%i`` is the number of one."""
    return LOOP.replace("TOTAL", total).replace("BODY", body)
