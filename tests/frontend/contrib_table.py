"""Operators of ONNX Runtime's own domain, and what of their inputs and attributes is tried against its CPU provider.

A row: the operator, how many outputs are asked for, its inputs, its attributes.  ``|`` is between alternatives, ``-``
leaves one out, ``!`` makes it a constant of the model.  An input is a kind, a shape and a range: ``i32(2 3)[0,1]``.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_ROWS = """
Attention 1|2 : f(2 3 4) f(4 24)! f(24)! -|i32(2 3)[0,1]|i32(2)[1,3]|i32(4)[0,3]|i32(2 3 3)[0,1]|i32(2 1 3 3)[0,1] -
 -|f(1 2 3 3)|f(2 2 3 3)|f(2 1 3 3)|f(1 1 3 3) ; num_heads=2 unidirectional=0|1 scale=-|0.3 mask_filter_value=-|-5.0
 qkv_hidden_sizes=-|[8,8,8]
Attention 1|2 : f(2 3 4) f(4 20)! f(20)! -|i32(2 3)[0,1] ; num_heads=2 unidirectional=0|1
 qkv_hidden_sizes=[8,8,4]|[4,4,12]
Attention 2 : f(2 3 4) f(4 24)! f(24)! -|i32(2 8)[0,1]|i32(2 3 8)[0,1]|i32(2)[4,8] f(2 2 2 5 4) -|f(2 2 3 8)|f(1 1 3
 8) ; num_heads=2 unidirectional=0|1
BiasGelu 1 : f(2 3 4) f(4)
CDist 1 : f(3 4)|d(3 4)|f(1 4) =(5 4)|=(5 4)!|=(1 4) ; metric=-|'euclidean'|'sqeuclidean'
DequantizeLinear 1 : i8(2 3 4)|u8(2 3 4)|i16(2 3 4)|u16(2 3 4)|i32(2 3 4)[-9,9] f()[0.1,0.2]!|f(1)[0.1,0.2]!
 -|=()[0,9]!|=(1)[0,9]!
DequantizeLinear 1 : i8(2 3 4)|u8(2 3 4)|i4(2 3 4)!|u4(2 3 4)! f(3)[0.1,0.2]! -|=(3)[0,7]! ; axis=1|-2
DynamicQuantizeLSTM 1|3 : f(4 2 3) i8(1 3 16)!|u8(1 3 16)! =1(1 4 16)! -|f(1 32)! -|i32(2)[1,4] -|f(1 2 4) -|f(1 2 4)
 -|f(1 12)! f(1)[0.01,0.02]!|f(1 16)[0.01,0.02]! =1(=)[0,3]!|=1(=)[0,0]! f(1)[0.01,0.02]!|f(1 16)[0.01,0.02]!
 =1(=)[0,0]! ; hidden_size=4 direction=-|'reverse' clip=-|0.3 input_forget=-|1
 activations=-|-|['Relu','Tanh','Sigmoid']
DynamicQuantizeLSTM 3 : f(4 2 3) i8(2 3 16)! i8(2 4 16)! -|f(2 32)! -|i32(2)[1,4] -|f(2 2 4) -|f(2 2 4) -|f(2 12)!
 f(2)[0.01,0.02]! i8(2)[0,3]! f(2 16)[0.01,0.02]! i8(2 16)[0,0]! ; hidden_size=4 direction='bidirectional'
DynamicQuantizeMatMul 1 : f(3 4)|f(2 3 4)|f(2 2 3 4) i8(4 6)!|u8(4 6)! f()[0.01,0.02]!|f(6)[0.01,0.02]! -|=1(=)[0,9]!
 -|f(6)!
DynamicQuantizeMatMul 1 : f(2 3 4) i8(2 4 6)!|u8(2 4 6) f()[0.01,0.02]!|f(2 1 6)[0.01,0.02]! -|=1(=)[0,9]! -|f(6)!
EmbedLayerNormalization 1|2|3 : i32(2 5)[0,9] -|i32(2 5)[0,1] f(10 8)! f(9 8)! -|f(2 8)! f(8)! f(8)! -|i32(2 5)[0,1]
 -|i32(2 5)[0,8]|i32(1 5)[0,8] ; epsilon=-|0.001 mask_index_type=-|0|1
ExpandDims 1 : f(2 3)|i64(2 3)|f16(2 3) i32()[-3,-3]!|i32()[2,2]!|i32()[0,0]!|i32(1)[1,1]!
FastGelu 1 : f(2 3 4) -|f(4)
FusedConv 1 : f(1 4 7 6) f(6 4 3 3)! -|f(6)! -|f(1 6 7 6) ; pads=[1,1,1,1] activation=-|'Relu'|'Tanh'|'Sigmoid'
FusedConv 1 : f(1 4 7 6) f(6 2 3 3)!|f(6 2 2 3)! -|f(6)! ; activation='LeakyRelu'|'Clip'|'HardSigmoid'
 activation_params=[0.1,0.4] group=2 auto_pad=-|'SAME_UPPER'|'VALID'|'SAME_LOWER' strides=-|[2,1] dilations=-|[1,2]
FusedConv 1 : f(1 4 9)|f(1 4 9 3 4) f(6 4 3)!|f(6 4 3 3 3)! -|f(6)! ; activation='Relu'
FusedGemm 1 : f(3 4) f(4 5)!|f(4 5) -|f(5)!|f(1 5)|f(3 1)|f(3 5)|f()|f(1) ; alpha=-|0.5 beta=-|2.0
 activation='Relu'|'Tanh'|'Sigmoid'
 |'LeakyRelu'|'Softplus'|'Elu'|'HardSigmoid'|'ThresholdedRelu'|'Softsign'|'ParametricSoftplus'|'Selu'|'ScaledTanh'
 activation_alpha=-|0.3 activation_beta=-|0.6 activation_gamma=-|1.5
FusedGemm 1 : f(4 3) f(5 4) -|f(5) ; transA=1 transB=1 activation='Relu'
FusedMatMul 1 : f(2 3 4)|f(3 4)|f(1 3 4)|f(5 2 3 4)|d(2 3 4) =(2 4 6)|=(4 6)!|=(1 4 6)|=(5 2 4 6) ; alpha=-|0.5
FusedMatMul 1 : f(2 4 4)|f(4 4)|f(4)|f(3 2 4 4) f(2 4 4)|f(4 4)!|f(4)|f(3 2 4 4) ; alpha=-|0.5 transA=0|1 transB=0|1
FusedMatMul 1 : f(4 4 4)|f(4 4 4 4) f(4 4 4)|f(4 4 4 4) ; transA=0|1 transB=0|1 transBatchA=0|1 transBatchB=0|1
FusedMatMul 1 : f(3 2 5 4) f(3 2 7 4)|f(3 2 4 7)|f(4 3 2 7)|f(7 3 2 4) ; transB=0|1 transBatchB=0|1
GatherBlockQuantized 1 : u8(20 32)! i64(2 3)[0,3]|i32(2)[-4,3]|i64()[1,1] f(20 2)[0.1,0.2]!|f16(20 2)[0.1,0.2]!
 -|u8(20 2)! ; bits=8 block_size=16 quantize_axis=1|-1 gather_axis=-|0
GatherBlockQuantized 1 : u8(20 32)!|u8(20 16)! i64(2 3)[0,3]|i32(2)[-4,3] f(20 4)[0.1,0.2]!|f(20 2)[0.1,0.2]! -|u8(20
 2)!|u8(20 1)! ; bits=4 block_size=16 quantize_axis=1 gather_axis=-|0
GatherBlockQuantized 1 : u8(20 16)! i64(2 3)[0,3] f(20 4)[0.1,0.2]! -|u8(20 1)! ; bits=2 block_size=16 quantize_axis=1
GatherBlockQuantized 1 : u8(4 20 16)! i64(2)[0,3] f(4 20 2)[0.1,0.2]! -|u8(4 20 1)! ; bits=4 block_size=16
 quantize_axis=2|-1 gather_axis=0|1
GatherBlockQuantized 1 : i4(20 32)!|u4(20 32)! i64(2 3)[0,3]|i32(2)[-4,3] f(20 2)[0.1,0.2]!|f16(20 2)[0.1,0.2]! -|=(20
 2)! ; block_size=16 quantize_axis=1|-1 gather_axis=-|0
GatherBlockQuantized 1 : i4(32 6)!|u4(32 6)! i64(2 3)[0,3] f(2 6)[0.1,0.2]! -|=(2 6)! ; block_size=16 quantize_axis=0
 gather_axis=1
GatherBlockQuantized 1 : i4(32 6)!|u4(32 6)!|i4(20 32)!|u8(32 6)! i64(2 3)[0,3] f(2 6)[0.1,0.2]!|f(20 2)[0.1,0.2]! ;
 block_size=16 quantize_axis=0|1 gather_axis=0|1
GatherBlockQuantized 1 : e4m3(20 32)!|e5m2(20 32)!|e4m3fnuz(20 32)!|e5m2fnuz(20 32)!|e2m1(20 32)! i64(2 3)[0,3] f(20
 2)[0.1,0.2]!|f16(20 2)[0.1,0.2]!|f()[0.1,0.2]!|f(20 1)[0.1,0.2]!|f(1 1)[0.1,0.2]! ; block_size=16|0 quantize_axis=1
GatherND 1 : f(3 4 5)|i64(3 4 5)|f16(3 4 5) i64(2 2)[0,2]|i32(2 1)[-3,2]|i64(3)[0,2]
Gelu 1 : f(2 3 4)
GridSample 1 : f(1 2 4 5) f(1 3 4 2)[-1.2,1.2] ; mode=-|'bilinear'|'nearest'|'bicubic'
 padding_mode=-|'zeros'|'border'|'reflection' align_corners=-|1
GroupQueryAttention 3 : f(2 3 64) f(2 3 32) f(2 3 32) - - i32(2)[2,2]! i32()[3,3]! ; num_heads=4 kv_num_heads=2
 softcap=-|2.0 local_window_size=-|2 scale=-|0.3 smooth_softmax=-|1 causal=-|0
GroupQueryAttention 3 : f(2 1 64) f(2 1 32) f(2 1 32) f(2 2 5 16)|f(2 2 8 16) ==(=) i32(2)[3,5]! i32()[6,6]! -|f(12 8)
 ==(=) -|i64(2 1)[0,5] -|f(2 4 1 6)|f(1 4 1 6)|f(2 1 1 6) -|f(4) ; num_heads=4 kv_num_heads=2 do_rotary=0|1
 rotary_interleaved=0|1
GroupQueryAttention 4 : f(1 3 64) f(1 3 32) f(1 3 32) f(1 2 5 16) ==(=) i32(1)[7,7]! i32()[8,8]! ; num_heads=4
 kv_num_heads=2 qk_output=1|2 softcap=-|2.0
GroupQueryAttention 3 : f(1 3 128) - - f(1 2 5 16) ==(=) i32(1)[7,7]! i32()[8,8]! - - - - -|f(4) ; num_heads=4
 kv_num_heads=2 smooth_softmax=-|1 local_window_size=-|3
GroupQueryAttention 3 : f(1 3 64) f(1 3 32) f(1 3 32) i8(1 2 5 16)|i8(1 2 8 16) ==(=) i32(1)[7,7]! i32()[8,8]! - - - -
 - f()[0.01,0.02]! f()[0.01,0.02]! ; num_heads=4 kv_num_heads=2 k_quant_type='PER_TENSOR' v_quant_type='PER_TENSOR'
 kv_cache_bit_width=8
GroupQueryAttention 3 : f(1 3 64) f(1 3 32) f(1 3 32) i8(1 2 5 16) ==(=) i32(1)[7,7]! i32()[8,8]! - - - - -
 f(32)[0.01,0.02]! f(2 1 16)[0.01,0.02]!|f(32)[0.01,0.02]! ; num_heads=4 kv_num_heads=2 k_quant_type='PER_CHANNEL'
 v_quant_type='PER_CHANNEL' kv_cache_bit_width=8
GroupQueryAttention 3 : f(1 3 64) f(1 3 32) f(1 3 32) u8(1 2 5 8) ==(=) i32(1)[7,7]! i32()[8,8]! - - - - -
 f()[0.2,0.4]! f()[0.2,0.4]! ; num_heads=4 kv_num_heads=2 k_quant_type='PER_TENSOR' v_quant_type='PER_TENSOR'
 kv_cache_bit_width=4
GroupQueryAttention 3 : f(1 3 64) f(1 3 32) f(1 3 32) u8(1 2 5 8) ==(=) i32(1)[7,7]! i32()[8,8]! - - - - -
 f(32)[0.2,0.4]! f(32)[0.2,0.4]! ; num_heads=4 kv_num_heads=2 k_quant_type='PER_CHANNEL' v_quant_type='PER_CHANNEL'
 kv_cache_bit_width=4
MatMulInteger16 1 : i16(2 3 4)|i16(3 4) i16(4 5)|i16(2 4 5)
MatMulIntegerToFloat 1 : u8(5 8)|i8(5 8)|u8(2 5 8) i8(8 6)!|u8(8 6)! f()[0.1,0.2]!|f(1)[0.1,0.2]
 f()[0.1,0.2]!|f(6)[0.1,0.2]! -|=0()[0,9]! -|=1()[0,9]!|=1(6)[0,9]! -|f(6)!
MatMulNBits 1 : f(3 40)|f(2 3 40)|f16(3 40) u8(5 3 8)! =(15)[0.1,0.2]!|=(5 3)[0.1,0.2]! -|u8(10)!|u8(5
 2)!|=0(15)!|=0(5 3)! -|g16(40)!|g16(48)! -|=0(5) ; K=40 N=5 bits=4 block_size=16 accuracy_level=-|1|4
MatMulNBits 1 : f(3 32) u8(5 2 4)! f(5 2)[0.1,0.2]! -|u8(5 1)!|f(5 2)! -|g16(32)! -|f(5) ; K=32 N=5 bits=2
 block_size=16
MatMulNBits 1 : f(3 32) u8(5 2 16)! f(5 2)[0.1,0.2]! -|u8(5 2)!|f(5 2)! -|g16(32)! -|f(5) ; K=32 N=5 bits=8
 block_size=16
MatMulNBits 1 : f(3 32)|f(2 2 32) u8(5 2 8)! f(5 2)[0.1,0.2]! -|u8(5 1)!|f(5 2)! -|g16(32)! -|f(5) ; K=32 N=5 bits=4
 block_size=16
MultiHeadAttention 1|3 : f(2 3 8) f(2 5 8) f(2 5 8)|f(2 5 12) -|f(24)!|f(28)! -|i32(2 5)[0,1]|i32(2)[1,5]|i32(2 3
 5)[0,1]|i32(8)[0,3] -|f(1 2 3 5)|f(2 2 3 5)|f(1 1 3 5)|f(2 1 3 5) ; num_heads=2 unidirectional=0|1 scale=-|0.3
 mask_filter_value=-|-5.0
MultiHeadAttention 3 : f(2 3 8) f(2 3 8) f(2 3 8) -|f(24)! -|i32(2 7)[0,1] -|f(1 2 3 7) f(2 2 4 4) f(2 2 4 4) ;
 num_heads=2 unidirectional=0|1
MultiHeadAttention 1 : f(2 3 8) f(2 2 6 4) f(2 2 6 4) -|f(24)! -|i32(2 6)[0,1] ; num_heads=2
MultiHeadAttention 1|3 : f(2 3 2 3 4) ; num_heads=2
MultiHeadAttention 1 : f(2 3 8) f(2 5 2 2 4) ; num_heads=2
MultiHeadAttention 3 : f(2 1 8) f(2 1 8) f(2 1 8) -|f(24)! - - f(2 2 8 4) f(2 2 8 4) i32(1)[5,5]|i32()[7,7] -|i32(2 1
 8)[0,0]|i32(1 2 8)[0,1] ; num_heads=2
MultiHeadAttention 3 : f(2 3 8) f(2 3 8) f(2 3 8) -|f(24)! - - f(2 2 8 4) f(2 2 8 4) i32(1)[5,5]! ; num_heads=2
 unidirectional=0|1
NhwcMaxPool 1 : u8(1 7 6 4)|i8(1 7 6 4) ; kernel_shape=[3,2] strides=-|[2,1] pads=-|[1,0,1,1] ceil_mode=-|1
 dilations=-|[1,2] auto_pad=-|'SAME_UPPER'|'VALID'
Pad 1 : f(3 4) i64(4)[0,2]!|i64(4)[-1,2]! -|f()!|f(1)! ; mode=-|'constant'|'reflect'|'edge'|'wrap'
QAttention 1|2 : u8(2 3 4) i8(4 24)!|u8(4 24)! f(24)! f()[0.01,0.02]! f()[0.01,0.02]!|f(24)[0.01,0.02]! -|i32(2
 3)[0,1]|i32(2)[1,3]|i32(2 8)[0,1]|i32(4)[0,3] -|u8()[90,140]! -|=1()[0,9]!|=1(24)[0,9]! -|f(2 2 2 5 4) ; num_heads=2
 unidirectional=0|1 scale=-|0.3 mask_filter_value=-|-5.0
QGemm 1 : u8(5 8)|i8(5 8) f()[0.01,0.02]! =0()[0,9]! i8(8 6)!|u8(8 6)! f()[0.01,0.02]!|f(6)[0.01,0.02]!
 =3()[0,9]!|=3(6)[0,9]! -|i32(6)[-99,99]!| i32(5 6)[-99,99]!|i32(1 6)[-99,99]! -|f()[0.02,0.03]! -|=0()[0,9]! ;
 alpha=-|0.7
QGemm 1 : u8(8 5)|i8(8 5)|u8(5 8) f()[0.01,0.02]! =0()[0,9]! i8(6 8)!|i8(8 6)! f()[0.01,0.02]! i8()[0,9]!
 -|i32(6)[-99,99]! -|f()[0.02,0.03]! =0()[0,9]! ; transA=0|1 transB=0|1
QLinearAdd 1 : u8(2 3 4)|i8(2 3 4) f()[0.1,0.2]! -|=0()[0,9]! =0(2 3 4)|=0(4)|=0(3 1)|=0()! f()[0.1,0.2]! -|=0()[0,9]!
 f()[0.1,0.2]! -|=0()[0,9]!
QLinearMul 1 : u8(2 3 4)|i8(2 3 4) f()[0.1,0.2]! -|=0()[0,9]! =0(2 3 4)|=0(4)|=0(3 1)|=0()! f()[0.1,0.2]! -|=0()[0,9]!
 f()[0.1,0.9]! -|=0()[0,9]!
QLinearAveragePool 1 : u8(1 3 7 6)|i8(1 3 7 6) f()[0.1,0.2]! -|=0()[0,9]! f()[0.1,0.2]! =0()[0,9]! ;
 kernel_shape=[3,2] strides=-|[2,1] pads=-|[1,0,1,1] ceil_mode=-|1 count_include_pad=-|1
 auto_pad=-|-|'SAME_UPPER'|'VALID' channels_last=-|1
QLinearAveragePool 1 : u8(1 3 9)|i8(1 3 9)|u8(1 2 4 5 3) f()[0.1,0.2]! =0()[0,9]! f()[0.1,0.2]! =0()[0,9]! ;
 kernel_shape=[2]|[2,2,2] channels_last=-|1
QLinearConcat 1 : f()[0.1,0.2]! u8()[0,9]! u8(2 3) f()[0.1,0.2]! u8()[0,9]! ; axis=1|-1
QLinearConcat 1 : f()[0.1,0.2]! i8()[0,9]! i8(2 3) f()[0.1,0.2]! i8()[0,9]! i8(2 3)|i8(4 3) f()[0.1,0.2]! i8()[0,9]! ;
 axis=0|1
QLinearConv 1 : u8(1 4 7 6)|i8(1 4 7 6)|u8(1 7 6 4) f()[0.1,0.2]! =0()[0,9]! i8(6 4 3 3)!|u8(6 4 3 3)!
 f()[0.01,0.02]!|f(6)[0.01,0.02]! =3()[0,0]!|=3()[0,9]!| =3(6)[0,0]! f()[0.1,0.2]! =0()[0,9]! -|i32(6)[-99,99]! ;
 channels_last=-|1 strides=-|[2,1] pads=-|[1,0,1,1] auto_pad=-|'SAME_UPPER'|'VALID' dilations=-|[1,2]
QLinearConv 1 : u8(1 4 7 6)|u8(1 7 6 4) f()[0.1,0.2]! u8()[0,9]! i8(6 2 3 3)!|i8(4 1 3 3)! f()[0.01,0.02]! i8()[0,0]!
 f()[0.1,0.2]! u8()[0,9]! ; group=2|4 channels_last=-|1
QLinearGlobalAveragePool 1 : u8(1 4 3 5)|i8(2 4 3 5)|u8(1 4 6)|u8(1 2 3 4 2) f()[0.1,0.2]! =0()[0,9]! f()[0.1,0.2]!
 =0()[0,9]! ; channels_last=-|1
QLinearLeakyRelu 1 : u8(2 3)|i8(2 3) f()[0.1,0.2]! -|=0()[0,9]! f()[0.1,0.2]! =0()[0,9]! ; alpha=-|0.3
QLinearSigmoid 1 : u8(2 3)|i8(2 3) f()[0.1,0.2]! -|=0()[0,9]! f()[0.004,0.005]! =0()[0,9]!
QLinearSoftmax 1 : u8(2 3 4)|i8(2 3 4) f()[0.05,0.2]! -|=0()[0,9]! f()[0.003,0.005]! =0()[0,9]! ; opset=9|12|13
 axis=-|0|1|2|-1|-2
QLinearWhere 1 : b(2 3)|b(3)|b() u8(2 3)|i8(2 3)|u8(3) f()[0.1,0.2]! =1()[0,9]! =1(2 3)|=1() f()[0.1,0.2]! =1()[0,9]!
 f()[0.1,0.2]! =1()[0,9]!
QuantizeLinear 1 : f(2 3 4)[-20,20] f()[0.1,0.2]!|f(1)[0.1,0.2]! -|i8(=)[0,9]!|u8(=)[0,9]!|i16(=)[0,9]!|u16(=)[0,9]!
QuantizeLinear 1 : f(2 3 4)[-2,2] f(3)[0.1,0.2]! -|i8(=)[0,9]!|u8(=)[0,9]!|i16(=)[0,9]!|u16(=)[0,9]! ; axis=1|-2
QuickGelu 1 : f(2 3 4) ; alpha=-|1.0|-1.3
Range 1 : f()[1,1]! f()[7,7]! -|f()[0.5,0.5]!
Range 1 : i64()[1,1]!|i16()[1,1]!|i32()[7,7]!|d()[1,1]! =0()[7,7]! -|=0()[2,2]!|=0(1)[2,2]!
RotaryEmbedding 1 : f(2 3 8)|f(2 2 3 8)|f16(2 3 8) i64(1)[0,5]|i64(2 3)[0,11] =0(12 4)|=0(12 2) =2(=) ;
 interleaved=-|1 num_heads=-|2 rotary_embedding_dim=-|4 scale=-|2.0 is_packed_batching=-|1
SkipLayerNormalization 1|4 : f(2 3 4)|d(2 3 4)|f16(2 3 4)|f(3 4) =0(2 3 4)|=0(1 3 4)|=0(3 4) =0(4) -|=0(4) -|=0(4) ;
 epsilon=-|0.001
SkipSimplifiedLayerNormalization 1|4 : f(2 3 4)|d(2 3 4)|f16(2 3 4)|f(3 4) =0(2 3 4)|=0(1 3 4)|=0(3 4) =0(4) -|=0(4) ;
 epsilon=-|0.001
TransposeMatMul 1 : f(2 4 4)|f(4 4)|f(3 2 4 4) f(2 4 4)|f(4 4)!|f(3 2 4 4) ; alpha=-|0.5 transA=0|1 transB=0|1
Trilu 1 : f(3 4)|i64(2 3 4)|d(3 4) -|i64()[-1,-1]!|i64()[1,1]!|i64(1)[-2,-2]! ; upper=-|0
Unique 1|3 : f(9)[0,3]
"""

_WIDTHS = {"f": "float", "i": "int", "u": "uint"}
_KINDS = {"f": "float32", "d": "float64", "b": "bool", "e2m1": "float4_e2m1fn", "e5m2": "float8_e5m2"} | {
    "e4m3": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz"
}  # fmt: skip
_TERM = re.compile(r"(==|=\d*|\w+)\(([^)]*)\)(?:\[([^]]+)\])?(!?)$")


@dataclass(frozen=True)
class Try:
    """One node: its inputs, ``None`` where left out, and which of them are constants."""

    op: str
    inputs: list[np.ndarray | None]
    constant: list[bool]
    attributes: dict[str, Any]
    outputs: int

    def __str__(self) -> str:
        shapes = ["-" if a is None else f"{a.dtype.name}{list(a.shape)}" for a in self.inputs]
        return f"{self.op}({', '.join(shapes)}) {self.attributes} -> {self.outputs}"


@dataclass(frozen=True)
class Row:
    op: str
    outputs: list[str]
    inputs: list[list[str]]
    attributes: dict[str, list[str]]

    def tries(self, most: int) -> Iterator[Try]:
        """As many as there are, or ``most`` of them; inputs of other sizes now and then do not fit one another."""
        axes = [self.outputs, *self.inputs, *self.attributes.values()]
        rng = random.Random(self.op + str(self.inputs))
        if math.prod(map(len, axes)) <= most:
            chosen = [list(c) for c in itertools.product(*axes)]
        else:
            chosen = [[rng.choice(axis) for axis in axes] for _ in range(most)]
        for outputs, *rest in chosen:
            terms, values = rest[: len(self.inputs)], rest[len(self.inputs) :]
            arrays = _arrays(terms, np.random.default_rng(rng.getrandbits(32)))
            given = {n: eval(v) for n, v in zip(self.attributes, values, strict=True) if v != "-"}
            yield Try(self.op, arrays, [t.endswith("!") for t in terms], given, int(outputs))


def _arrays(terms: list[str], rng: np.random.Generator) -> list[np.ndarray | None]:
    """``=3`` is the dtype of input 3 (``=``: of the first), ``==`` of the one before; ``(=)`` the shape of the one
    before."""
    found: list[np.ndarray | None] = []
    for term in terms:
        if term == "-" or (term.startswith("==") and found[-1] is None):
            found.append(None)
            continue
        match = _TERM.match(term)
        assert match, term
        kind, shape, limits, _ = match.groups()
        if kind.startswith("g"):  # groups of so many, in any order
            found.append(rng.permutation(np.arange(int(shape), dtype=np.int32) // int(kind[1:])))
            continue
        before = found[-1] if found else None
        like = before if kind == "==" else found[int(kind[1:] or 0)] if kind.startswith("=") else None
        dtype = like.dtype if like is not None else _dtype(kind)
        extents = (() if before is None else before.shape) if shape == "=" else tuple(map(int, shape.split()))
        found.append(_array(rng, extents, dtype, limits))
    return found


def _dtype(kind: str) -> np.dtype[Any]:
    name = _KINDS.get(kind) or _WIDTHS[kind[0]] + kind[1:]
    return np.dtype(getattr(ml_dtypes, name, name))


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], limits: str | None) -> np.ndarray:
    if dtype.name == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    low, high = (float(x) for x in limits.split(",")) if limits else (-128, 128) if dtype.kind == "i" else (0, 256)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(int(low), int(high) + bool(limits), shape)).astype(dtype)
    if limits:
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
    if dtype.itemsize == 1 or dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return rng.integers(*((-8, 8) if dtype == ml_dtypes.int4 else (0, 16)), shape).astype(dtype)


def _row(line: str) -> Row:
    head, _, body = line.partition(" : ")
    op, outputs = head.split()
    inputs, _, attributes = body.partition(" ; ")
    terms = re.findall(r"(?:[^\s(]|\([^)]*\))+", inputs.replace("| ", "|"))
    pairs = [a.split("=", 1) for a in attributes.replace(" |", "|").split()]
    return Row(op, outputs.split("|"), [t.split("|") for t in terms], {n: v.split("|") for n, v in pairs})


ROWS = [_row(line) for line in _ROWS.strip().replace("\n ", " ").splitlines()]
