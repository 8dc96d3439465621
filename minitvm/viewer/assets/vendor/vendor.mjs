// What the page uses of other projects, as one file: `npm install && npm run build` writes vendor.js.
import * as dagre from "@dagrejs/dagre";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { diffArrays } from "diff";
import hljs from "highlight.js/lib/core";
import armasm from "highlight.js/lib/languages/armasm";
import cpp from "highlight.js/lib/languages/cpp";
import llvm from "highlight.js/lib/languages/llvm";
import x86asm from "highlight.js/lib/languages/x86asm";

hljs.registerLanguage("armasm", armasm);
hljs.registerLanguage("cuda", cpp);
hljs.registerLanguage("llvm", llvm);
hljs.registerLanguage("asm", x86asm);

export { dagre, diffArrays, hljs, select, zoom, zoomIdentity };
