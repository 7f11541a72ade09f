"""The kernels of the load test, as PTX.

`fill` writes a pattern that depends on address and seed, `verify` compares memory with it. `multiply`
multiplies matrices with tensor cores again and again, and compares the sums with the known result.
"""

THREADS = 256
"""Threads of a block."""

TILES = 4
"""Independent multiplications of one warp, each with matrices of its own."""

SUMMED = 256
"""Multiplications that are summed before the sum is compared. The sums stay exact in single precision."""

_HEAD = ".version 7.0\n.target {target}\n.address_size 64\n"

_WALK = """
  .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [memory]; cvta.to.global.u64 %rd1, %rd1;
  ld.param.u64 %rd2, [words];
  ld.param.u32 %r1, [seed];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %nctaid.x;
  cvt.u64.u32 %rd4, %r4;
  mad.wide.u32 %rd3, %r2, %r3, %rd4;
  mul.wide.u32 %rd5, %r5, %r3;
NEXT:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra DONE;
  cvt.u32.u64 %r6, %rd3;
  mad.lo.u32 %r7, %r6, 0x9E3779B1, %r1;
  shr.u32 %r8, %r7, 15;
  xor.b32 %r7, %r7, %r8;
  not.b32 %r9, %r7;
  add.u32 %r10, %r7, 0x9E3779B1;
  xor.b32 %r11, %r7, 0x5A5A5A5A;
  shl.b64 %rd6, %rd3, 4;
  add.u64 %rd7, %rd1, %rd6;
"""
"""Walk over words of 16 bytes; %r7, %r9, %r10 and %r11 are what the word at %rd7 should be."""

_AGAIN = """
  add.u64 %rd3, %rd3, %rd5;
  bra NEXT;
DONE:
  ret;
}
"""

MEMORY = (
    _HEAD.format(target="sm_70")
    + ".visible .entry fill(.param .u64 memory, .param .u64 words, .param .u32 seed)\n{"
    + _WALK
    + "  st.global.v4.u32 [%rd7], {%r7, %r9, %r10, %r11};"
    + _AGAIN
    + "\n.visible .entry verify(.param .u64 memory, .param .u64 words, .param .u32 seed, .param .u64 errors)\n{"
    + _WALK
    + """
  ld.global.v4.u32 {%r12, %r13, %r14, %r15}, [%rd7];
  xor.b32 %r12, %r12, %r7;
  xor.b32 %r13, %r13, %r9;
  xor.b32 %r14, %r14, %r10;
  xor.b32 %r15, %r15, %r11;
  or.b32 %r12, %r12, %r13;
  or.b32 %r14, %r14, %r15;
  or.b32 %r12, %r12, %r14;
  setp.eq.u32 %p2, %r12, 0;
  @%p2 bra GOOD;
  ld.param.u64 %rd8, [errors]; cvta.to.global.u64 %rd8, %rd8;
  red.global.add.u64 [%rd8], 1;
  st.global.u64 [%rd8+8], %rd7;
GOOD:
"""
    + _AGAIN
)


def multiply_kernel() -> str:
    """Return the PTX of `multiply`.

    `fragments` has for each lane of a warp the registers of both factors of each tile, `expected` the
    sums that the lane must get. Each thread loads its own; 4 bytes per register.
    """
    lines = [
        _HEAD.format(target="sm_80"),
        ".visible .entry multiply(.param .u64 fragments, .param .u64 expected, .param .u32 rounds, "
        ".param .u64 errors)\n{",
        ".reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<8>;",
        f".reg .b32 %a<{4 * TILES}>; .reg .b32 %b<{2 * TILES}>;",
        f".reg .f32 %c<{4 * TILES}>; .reg .f32 %e<{4 * TILES}>;",
        "ld.param.u64 %rd1, [fragments]; cvta.to.global.u64 %rd1, %rd1;",
        "ld.param.u64 %rd2, [expected]; cvta.to.global.u64 %rd2, %rd2;",
        "ld.param.u32 %r1, [rounds];",
        "mov.u32 %r2, %laneid;",
        f"mul.wide.u32 %rd3, %r2, {24 * TILES}; add.u64 %rd1, %rd1, %rd3;",
        f"mul.wide.u32 %rd4, %r2, {16 * TILES}; add.u64 %rd2, %rd2, %rd4;",
    ]
    for tile in range(TILES):
        lines += [f"ld.global.b32 %a{4 * tile + i}, [%rd1+{24 * tile + 4 * i}];" for i in range(4)]
        lines += [f"ld.global.b32 %b{2 * tile + i}, [%rd1+{24 * tile + 16 + 4 * i}];" for i in range(2)]
        lines += [f"ld.global.f32 %e{4 * tile + i}, [%rd2+{16 * tile + 4 * i}];" for i in range(4)]
    lines += ["ROUND:", *(f"mov.f32 %c{i}, 0f00000000;" for i in range(4 * TILES))]
    lines += [f"mov.u32 %r3, {SUMMED};", "SUM:"]
    for tile in range(TILES):
        a = ", ".join(f"%a{4 * tile + i}" for i in range(4))
        b = ", ".join(f"%b{2 * tile + i}" for i in range(2))
        c = ", ".join(f"%c{4 * tile + i}" for i in range(4))
        lines.append(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};")
    lines += ["sub.u32 %r3, %r3, 1;", "setp.ne.u32 %p1, %r3, 0;", "@%p1 bra SUM;", "mov.u32 %r4, 0;"]
    for i in range(4 * TILES):
        lines += [f"setp.neu.f32 %p2, %c{i}, %e{i};", "@%p2 add.u32 %r4, %r4, 1;"]
    lines += [
        "setp.eq.u32 %p3, %r4, 0;",
        "@%p3 bra GOOD;",
        "ld.param.u64 %rd5, [errors]; cvta.to.global.u64 %rd5, %rd5;",
        "red.global.add.u64 [%rd5], 1;",
        "mov.u32 %r5, %smid; cvt.u64.u32 %rd6, %r5;",
        "st.global.u64 [%rd5+8], %rd6;",
        "GOOD:",
        "sub.u32 %r1, %r1, 1;",
        "setp.ne.u32 %p1, %r1, 0;",
        "@%p1 bra ROUND;",
        "ret;",
        "}",
    ]
    return "\n".join(lines) + "\n"
