"""The launch of a product, or of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minitvm.codegen.cuda.arrival import Arrival
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.blocks import Blocks
from minitvm.codegen.cuda.templates.blocks_group import GroupBlocks
from minitvm.codegen.cuda.templates.blocks_sliced import SlicedBlocks
from minitvm.codegen.cuda.templates.blocks_tensor import HalfBlocks, TensorBlocks
from minitvm.codegen.cuda.templates.product import GpuProduct, in_blocks
from minitvm.codegen.cuda.templates.tile import BlockTile, MmaTile, WgmmaTile
from minitvm.codegen.loops import redirect, unflatten, with_memory
from minitvm.ir.dtypes import SHORT
from minitvm.ir.loop import Buffer, If, LoopExpr, LoopKind, Stmt, all_of, loop, seq


def launches(tile: BlockTile, gpu: GpuModel, *products: GpuProduct) -> Stmt:
    """All results of products, in a tile's way, by one launch; parts of the depth are added, in their order, by the
    blocks that multiplied them: where these are a cluster, each adds some rows, else the last that arrives adds all."""
    blocks = _blocks(tile)
    if tile.split == 1:
        return _side_by_side([blocks(product, tile) for product in products], Blocks.multiplied)
    shapes = [(tile.split, product.batch, product.left.lines, product.right.lines) for product in products]
    parts = [Buffer("parts", shape, product.dtype) for shape, product in zip(shapes, products, strict=True)]
    made = [blocks(product, tile, memory) for product, memory in zip(products, parts, strict=True)]
    tiles = len(made) * max(each.tiles for each in made)
    arrival = Arrival(tile.split, tile.is_cluster(gpu, tiles))
    return with_memory(parts, seq(_side_by_side(made, Blocks.multiplied), arrival, _side_by_side(made, Blocks.added)))


def _blocks(tile: BlockTile) -> type[Blocks]:
    """Those that multiply in a tile's way."""
    if isinstance(tile, WgmmaTile):
        return GroupBlocks
    if isinstance(tile, MmaTile):
        return HalfBlocks if tile.kind in SHORT else TensorBlocks
    return SlicedBlocks if tile.slices > 1 else Blocks


def _side_by_side(made: Sequence[Blocks], body: Callable[[Blocks, LoopExpr, LoopExpr], Stmt]) -> Stmt:
    """``body(blocks, tile, part)`` of each: along the grid's second axis what is computed, along its first one the
    tiles and, in each, the parts of the depth."""
    split = made[0].tile.split
    most = max(blocks.tiles for blocks in made)
    places = {(n, b.shape): b for blocks in made for n, b in enumerate(blocks.shared)}  # both sides may look the same

    def block(number: LoopExpr, which: LoopExpr) -> Stmt:
        at, part = unflatten(number, (most, split))

        def one(i: int, blocks: Blocks) -> Stmt:
            found = redirect(body(blocks, at, part), {b: places[n, b.shape] for n, b in enumerate(blocks.shared)})
            asked = [which.equal(i), *([at < blocks.tiles] if blocks.tiles < most else [])]
            return If(all_of(asked), found)

        return with_memory(memory, seq(*(one(i, blocks) for i, blocks in enumerate(made))))

    def along(number: LoopExpr) -> Stmt:
        if len(made) == 1:
            return with_memory(memory, body(made[0], *unflatten(number, (most, split))))
        return loop(len(made), lambda which: block(number, which), LoopKind.BLOCK_Y, name="which")

    memory = places.values() if body is Blocks.multiplied else ()
    return in_blocks(most * split, along)
