// What the scripts of headwise take of d3; a test holds it to what they use.
export { bin, extent, max, mean, range, sort, sum } from "d3-array";
export { axisBottom, axisLeft, axisTop } from "d3-axis";
export { lab, rgb } from "d3-color";
export { format } from "d3-format";
export { interpolateRgb } from "d3-interpolate";
export { quadtree } from "d3-quadtree";
export { scaleBand, scaleDiverging, scaleLinear, scaleLog, scaleSequential, scaleSequentialLog } from "d3-scale";
export { interpolatePuOr, interpolateViridis } from "d3-scale-chromatic";
export { create, pointer } from "d3-selection";
