"""Twenty networks of torchvision, timm and transformers at the sizes that they are used at, beside other runtimes."""
