// Model of Lattice's MULT18X18D, limited to this project's netlists: unsigned operands, and either no register
// or one register per operand and one for the product, all without a reset and always enabled. Based on
// "ECP5 and ECP5-5G sysDSP Usage Guide" (FPGA-TN-02205). Any other use is an elaboration error.
module MULT18X18D(
    input A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0,
    input B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0,
    input C17, C16, C15, C14, C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2, C1, C0,
    input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB, CLK0, CE0, RST0,
    output P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
    output P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
);
    parameter REG_INPUTA_CLK = "NONE";
    parameter REG_INPUTA_CE = "CE0";
    parameter REG_INPUTA_RST = "RST0";
    parameter REG_INPUTB_CLK = "NONE";
    parameter REG_INPUTB_CE = "CE0";
    parameter REG_INPUTB_RST = "RST0";
    parameter REG_OUTPUT_CLK = "NONE";
    parameter REG_OUTPUT_CE = "CE0";
    parameter REG_OUTPUT_RST = "RST0";
    parameter GSR = "ENABLED";

    wire [17:0] a = {A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0};
    wire [17:0] b = {B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0};
    wire [35:0] product;
    assign {P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
            P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0} = product;

    generate
        if (REG_INPUTA_CLK == "NONE" && REG_INPUTB_CLK == "NONE" && REG_OUTPUT_CLK == "NONE") begin : combinational
            assign product = a * b;
        end else if (REG_INPUTA_CLK == "CLK0" && REG_INPUTB_CLK == "CLK0" && REG_OUTPUT_CLK == "CLK0"
                     && REG_INPUTA_CE == "CE0" && REG_INPUTB_CE == "CE0" && REG_OUTPUT_CE == "CE0"
                     && REG_INPUTA_RST == "RST0" && REG_INPUTB_RST == "RST0" && REG_OUTPUT_RST == "RST0"
                     ) begin : registered
            reg [17:0] a_register = 0, b_register = 0;
            reg [35:0] product_register = 0;
            assign product = product_register;
            always @(posedge CLK0) begin
                if (CE0) begin
                    a_register <= a;
                    b_register <= b;
                    product_register <= a_register * b_register;
                end
                if (RST0) begin
                    a_register <= 0;
                    b_register <= 0;
                    product_register <= 0;
                end
            end
        end else begin : other
            no_such_registers other();
        end
    endgenerate
endmodule
