// Floating-point units with results computed in the first stage by functions of native.h: see native.py.
// New operands enter in every cycle when load is high; units that are not folded keep it high.

module native_delay #(parameter CYCLES = 2) (input clk, input [31:0] i, output reg [31:0] o);
  // One wide register, because compiled code can shift it with a few vector instructions.
  reg [32 * CYCLES - 33:0] line;
  always @(posedge clk) begin
    o <= line[32 * CYCLES - 33 -: 32];
    line <= {line[32 * CYCLES - 65:0], i};
  end
endmodule

module native_add #(parameter LATENCY = 4) (input clk, input [31:0] a, input [31:0] b, output [31:0] o);
  reg [31:0] result;
  always @(posedge clk) result <= $cpure32("native::add(", a, ", ", b, ")");
  native_delay #(.CYCLES(LATENCY - 1)) delay (.clk(clk), .i(result), .o(o));
endmodule

module native_multiply #(parameter LATENCY = 4) (input clk, input [31:0] a, input [31:0] b, output [31:0] o);
  reg [31:0] result;
  always @(posedge clk) result <= $cpure32("native::multiply(", a, ", ", b, ")");
  native_delay #(.CYCLES(LATENCY - 1)) delay (.clk(clk), .i(result), .o(o));
endmodule

module native_divide #(parameter LATENCY = 4) (input clk, input load, input [31:0] a, input [31:0] b,
                                               output [31:0] o);
  reg [31:0] result;
  always @(posedge clk) if (load) result <= $cpure32("native::divide(", a, ", ", b, ")");
  native_delay #(.CYCLES(LATENCY - 1)) delay (.clk(clk), .i(result), .o(o));
endmodule

module native_square_root #(parameter LATENCY = 4) (input clk, input load, input [31:0] a, output [31:0] o);
  reg [31:0] result;
  always @(posedge clk) if (load) result <= $cpure32("native::square_root(", a, ")");
  native_delay #(.CYCLES(LATENCY - 1)) delay (.clk(clk), .i(result), .o(o));
endmodule
