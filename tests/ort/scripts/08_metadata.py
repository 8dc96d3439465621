"""What a model says of itself: metadata, inputs, outputs."""

import onnxruntime as rt
from helper import described

sess = rt.InferenceSession(described(), providers=rt.get_available_providers()[-1:])
meta = sess.get_modelmeta()
print("producer", meta.producer_name, "graph", meta.graph_name, "domain", meta.domain)
print("description", meta.description, "|", meta.graph_description, "| version", meta.version)
print(dict(sorted(meta.custom_metadata_map.items())))
for i, arg in enumerate(sess.get_inputs()):
    print(f"input {i}: name={arg.name!r} shape={arg.shape} type={arg.type}")
for i, arg in enumerate(sess.get_outputs()):
    print(f"output {i}: name={arg.name!r} shape={arg.shape} type={arg.type}")
print([a.name for a in sess.get_overridable_initializers()])
