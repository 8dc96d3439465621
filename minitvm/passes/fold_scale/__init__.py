"""FoldScaleAxis: scales of channels go into the weights of a neighbouring convolution or product."""
